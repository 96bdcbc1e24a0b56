// Runs cases of the Go client by name and prints a JSON line for each: driver NAME_SERVER PREFIX PARALLEL CASE...
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type caseFunc func(*run) error

var cases = map[string]caseFunc{
	"send-sync":         sendSync,
	"send-async":        sendAsync,
	"send-oneway":       sendOneway,
	"send-batch":        sendBatch,
	"send-properties":   sendProperties,
	"send-selector":     sendSelector,
	"body-1-byte":       func(r *run) error { return body(r, []byte{7}, 1) },
	"body-3-mib-noise":  func(r *run) error { return body(r, noise(3<<20), 1) },
	"body-3-mib-text":   func(r *run) error { return body(r, text(3<<20), 1) },
	"body-compressed":   func(r *run) error { return body(r, text(100000), 5) },
	"delay-level":       delayLevel,
	"topic-create":      topicCreate,
	"topic-auto-create": topicAutoCreate,
	"oversize":          oversize,
	"push-concurrent":   pushConcurrent,
	"push-orderly":      pushOrderly,
	"push-broadcast":    pushBroadcast,
	"long-poll":         longPoll,
	"filter-tag":        filterTag,
	"filter-sql":        filterSQL,
	"from-first":        fromFirst,
	"from-timestamp":    fromTimestamp,
	"offsets-restart":   restart,
	"rebalance-two":     rebalanceTwo,
	"two-groups":        twoGroups,
	"pull":              pull,
	"retry-later":       retryLater,
	"retry-dlq":         retryDLQ,
	"request-reply":     requestReply,
	"tx-commit":         txCommit,
	"tx-rollback":       txRollback,
	"tx-check-commit":   txCheckCommit,
	"tx-check-rollback": txCheckRollback,
}

type result struct {
	Case         string         `json:"case"`
	OK           bool           `json:"ok"`
	Detail       string         `json:"detail,omitempty"`
	Counts       map[string]any `json:"counts"`
	Milliseconds int64          `json:"milliseconds"`
}

func runCase(name string, one caseFunc, nameServer, prefix string) result {
	start := time.Now()
	r := newRun(nameServer, prefix, name)
	err := func() (err error) {
		defer func() {
			if broken := recover(); broken != nil {
				err = fmt.Errorf("%v", broken)
			}
		}()
		return one(r)
	}()
	done := result{Case: name, OK: err == nil, Counts: r.counts, Milliseconds: time.Since(start).Milliseconds()}
	if err != nil {
		done.Detail = err.Error()
	}
	r.close()
	return done
}

func main() {
	rlog.SetLogLevel("fatal")
	parallel, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	slots := make(chan struct{}, parallel)
	var printing sync.Mutex
	var running sync.WaitGroup
	for _, name := range os.Args[4:] {
		one, known := cases[name]
		if !known {
			panic("no case " + name)
		}
		running.Add(1)
		slots <- struct{}{}
		go func(name string) {
			defer running.Done()
			line, _ := json.Marshal(runCase(name, one, os.Args[1], os.Args[2]))
			printing.Lock()
			fmt.Println(string(line))
			printing.Unlock()
			<-slots
		}(name)
	}
	running.Wait()
}
