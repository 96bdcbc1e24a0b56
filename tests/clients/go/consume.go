package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func tags(expression string) consumer.MessageSelector {
	return consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
}

// sent starts a producer and sends some messages with it.
func (r *run) sent(prefix string, count int) ([]string, error) {
	p, err := r.producer()
	if err != nil {
		return nil, err
	}
	return r.send(p, prefix, count)
}

func pushConcurrent(r *run) error {
	box, err := r.inbox()
	if err != nil {
		return err
	}
	bodies, err := r.sent("a-", 60)
	if err != nil {
		return err
	}
	return box.expect(r, bodies)
}

func pushOrderly(r *run) error {
	box := &inbox{}
	if _, err := r.push(r.group, r.topic, tags("*"), box.accept, consumer.WithConsumerOrder(true)); err != nil {
		return err
	}
	p, err := r.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return err
	}
	expected := map[int][]string{}
	for i := 0; i < 15; i++ {
		for q := 0; q < 4; q++ {
			body := fmt.Sprintf("%d/%d", q, i)
			message := primitive.NewMessage(r.topic, []byte(body))
			message.Queue = &primitive.MessageQueue{Topic: r.topic, BrokerName: "broker-a", QueueId: q}
			if err := accepted(p.SendSync(background, message)); err != nil {
				return err
			}
			expected[q] = append(expected[q], body)
		}
	}
	if err := until(func() bool { return box.size() >= 60 }, "all messages arrive"); err != nil {
		return fmt.Errorf("%w: %d", err, box.size())
	}
	box.settle()
	r.counts["received"] = box.size()
	return equal(expected, box.byQueue(), "each queue's order")
}

func pushBroadcast(r *run) error {
	boxes := []*inbox{{}, {}}
	for _, box := range boxes {
		_, err := r.push(r.group, r.topic, tags("*"), box.accept, consumer.WithConsumerModel(consumer.BroadCasting))
		if err != nil {
			return err
		}
	}
	bodies, err := r.sent("to-all-", 20)
	if err != nil {
		return err
	}
	for _, box := range boxes {
		if err := box.expect(r, bodies); err != nil {
			return err
		}
	}
	return nil
}

func longPoll(r *run) error {
	box, err := r.inbox()
	if err != nil {
		return err
	}
	p, err := r.producer()
	if err != nil {
		return err
	}
	if _, err := r.send(p, "warm-", 8); err != nil {
		return err
	}
	if err := until(func() bool { return box.size() == 8 }, "the consumer works"); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	for i := 0; i < 10; i++ {
		start := time.Now()
		if _, err := r.send(p, fmt.Sprintf("m%d-", i), 1); err != nil {
			return err
		}
		if err := until(func() bool { return box.size() == 9+i }, "the message arrives"); err != nil {
			return err
		}
		if waited := box.times[8+i].Sub(start); waited > 4*time.Second {
			return fmt.Errorf("a message waited %v: a held pull was not woken", waited)
		}
	}
	r.counts["received"] = box.size()
	return nil
}

func filterTag(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	for i := 0; i < 12; i++ {
		tag := string("ABC"[i%3])
		message := primitive.NewMessage(r.topic, []byte(fmt.Sprintf("%s%d", tag, i))).WithTag(tag)
		if err := accepted(p.SendSync(background, message)); err != nil {
			return err
		}
	}
	if err := accepted(p.SendSync(background, primitive.NewMessage(r.topic, []byte("no tag")))); err != nil {
		return err
	}
	total := 0
	for suffix, one := range map[string]struct {
		expression string
		bodies     []string
	}{
		"":      {"A || C", []string{"A0", "C2", "A3", "C5", "A6", "C8", "A9", "C11"}},
		"-b":    {"B", []string{"B1", "B4", "B7", "B10"}},
		"-all":  {"*", []string{"A0", "B1", "C2", "A3", "B4", "C5", "A6", "B7", "C8", "A9", "B10", "C11", "no tag"}},
		"-none": {"Z", []string{}},
	} {
		box, err := r.inboxOf(r.group+suffix, tags(one.expression))
		if err != nil {
			return err
		}
		if err := box.expect(r, one.bodies); err != nil {
			return err
		}
		total += len(one.bodies)
	}
	r.counts["received"] = total
	return nil
}

func filterSQL(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	for i := 0; i < 12; i++ {
		message := primitive.NewMessage(r.topic, []byte(fmt.Sprintf("m%d", i))).WithTag([]string{"even", "odd"}[i%2])
		message.WithProperty("number", fmt.Sprint(i))
		message.WithProperty("name", fmt.Sprintf("n%d", i%3))
		if err := accepted(p.SendSync(background, message)); err != nil {
			return err
		}
	}
	if err := accepted(p.SendSync(background, primitive.NewMessage(r.topic, []byte("bare")))); err != nil {
		return err
	}
	total := 0
	for expression, bodies := range map[string][]string{
		"number BETWEEN 3 AND 6":                                {"m3", "m4", "m5", "m6"},
		"name IN ('n0', 'n1') AND number > 5 AND TAGS = 'even'": {"m6", "m10"},
		"number IS NULL":                                        {"bare"},
		"NOT (number < 10) OR name = 'none'":                    {"m10", "m11"},
	} {
		selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
		box, err := r.inboxOf(fmt.Sprintf("%s-%d", r.group, len(expression)), selector)
		if err != nil {
			return err
		}
		if err := box.expect(r, bodies); err != nil {
			return fmt.Errorf("%s: %w", expression, err)
		}
		total += len(bodies)
	}
	r.counts["received"] = total
	return nil
}

func fromFirst(r *run) error {
	bodies, err := r.sent("before-", 10)
	if err != nil {
		return err
	}
	box, err := r.inbox()
	if err != nil {
		return err
	}
	return box.expect(r, bodies)
}

func fromTimestamp(r *run) error {
	bodies, err := r.sent("old-", 8)
	if err != nil {
		return err
	}
	time.Sleep(2100 * time.Millisecond)
	middle := time.Now().Add(-time.Second)
	later, err := r.sent("new-", 8)
	if err != nil {
		return err
	}
	box := &inbox{}
	_, err = r.push(r.group, r.topic, tags("*"), box.accept,
		consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp),
		consumer.WithConsumeTimestamp(middle.Format("20060102150405")))
	if err != nil {
		return err
	}
	return box.expect(r, append(bodies, later...))
}

func restart(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	bodies, err := r.send(p, "a-", 20)
	if err != nil {
		return err
	}
	box := &inbox{}
	for part := 0; part < 3; part++ {
		stop, err := r.push(r.group, r.topic, tags("*"), box.accept)
		if err != nil {
			return err
		}
		if err := until(func() bool { return box.size() >= len(bodies) }, "a part arrives"); err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
		stop()
		more, err := r.send(p, fmt.Sprintf("between-%d-", part), 10)
		if err != nil {
			return err
		}
		bodies = append(bodies, more...)
	}
	if _, err := r.push(r.group, r.topic, tags("*"), box.accept); err != nil {
		return err
	}
	return box.expect(r, bodies)
}

func rebalanceTwo(r *run) error {
	boxes := []*inbox{{}, {}}
	for _, box := range boxes {
		if _, err := r.push(r.group, r.topic, tags("*"), box.accept); err != nil {
			return err
		}
	}
	p, err := r.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return err
	}
	everywhere := func(prefix string, count int) ([]string, error) {
		bodies := []string{}
		for i := 0; i < count; i++ {
			message := primitive.NewMessage(r.topic, []byte(fmt.Sprintf("%s%d", prefix, i)))
			message.Queue = &primitive.MessageQueue{Topic: r.topic, BrokerName: "broker-a", QueueId: i % 4}
			if err := accepted(p.SendSync(background, message)); err != nil {
				return nil, err
			}
			bodies = append(bodies, string(message.Body))
		}
		return bodies, nil
	}
	all := map[string]bool{}
	for round := 0; ; round++ {
		probes, err := everywhere(fmt.Sprintf("probe-%d-", round), 4)
		if err != nil {
			return err
		}
		for _, probe := range probes {
			all[probe] = true
		}
		time.Sleep(500 * time.Millisecond)
		if len(boxes[0].byQueue()) >= 2 && len(boxes[1].byQueue()) >= 2 && round >= 4 {
			break
		}
		if round > 100 {
			return fmt.Errorf("a consumer has no work: %v, %v", boxes[0].byQueue(), boxes[1].byQueue())
		}
	}
	got := func() map[string]bool {
		found := map[string]bool{}
		for _, body := range append(boxes[0].bodies(), boxes[1].bodies()...) {
			found[body] = true
		}
		return found
	}
	if err := until(func() bool { return len(got()) == len(all) }, "all probes arrive"); err != nil {
		return err
	}
	before := []int{boxes[0].size(), boxes[1].size()}
	if _, err := everywhere("shared-", 40); err != nil {
		return err
	}
	count := func(i int) int { return boxes[i].size() - before[i] }
	if err := until(func() bool { return count(0)+count(1) >= 40 }, "all messages arrive"); err != nil {
		return err
	}
	boxes[0].settle()
	r.counts["received"], r.counts["first"], r.counts["second"] = count(0)+count(1), count(0), count(1)
	return nil
}

func twoGroups(r *run) error {
	first, err := r.inboxOf(r.group+"-1", tags("*"))
	if err != nil {
		return err
	}
	second, err := r.inboxOf(r.group+"-2", tags("*"))
	if err != nil {
		return err
	}
	bodies, err := r.sent("m-", 20)
	if err != nil {
		return err
	}
	for _, box := range []*inbox{first, second} {
		if err := box.expect(r, bodies); err != nil {
			return err
		}
	}
	r.counts["received"] = first.size() + second.size()
	return nil
}

func pull(r *run) error {
	p, err := r.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return err
	}
	queues := []*primitive.MessageQueue{}
	for q := 0; q < 4; q++ {
		queues = append(queues, &primitive.MessageQueue{Topic: r.topic, BrokerName: "broker-a", QueueId: q})
	}
	for i := 0; i < 20; i++ {
		message := primitive.NewMessage(r.topic, []byte(fmt.Sprintf("m%d", i)))
		message.Queue = queues[i%4]
		if err := accepted(p.SendSync(background, message)); err != nil {
			return err
		}
	}
	c, err := rocketmq.NewPullConsumer(consumer.WithGroupName(r.group), consumer.WithNsResolver(r.resolver()),
		consumer.WithInstance(instance()))
	if err != nil {
		return err
	}
	if err := c.Subscribe(r.topic, tags("*")); err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	r.closing = append(r.closing, func() { _ = c.Shutdown() })
	received := 0
	for q, queue := range queues {
		bodies, expected := []string{}, []string{}
		for offset := int64(0); offset < 5; {
			pulled, err := c.PullFrom(background, queue, offset, 2)
			if err != nil {
				return err
			}
			if pulled.Status != primitive.PullFound {
				return fmt.Errorf("status %v at offset %d", pulled.Status, offset)
			}
			for _, message := range pulled.GetMessageExts() {
				bodies = append(bodies, string(message.Body))
			}
			offset = pulled.NextBeginOffset
		}
		for i := q; i < 20; i += 4 {
			expected = append(expected, fmt.Sprintf("m%d", i))
		}
		if err := equal(expected, bodies, fmt.Sprintf("queue %d", q)); err != nil {
			return err
		}
		received += len(bodies)
	}
	r.counts["received"], r.counts["queues"] = received, len(queues)
	return nil
}

func retryLater(r *run) error {
	box := &inbox{}
	_, err := r.push(r.group, r.topic, tags("*"), func(message *primitive.MessageExt) consumer.ConsumeResult {
		box.accept(message)
		if string(message.Body[:3]) == "bad" && message.ReconsumeTimes < 2 {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return err
	}
	bodies, err := r.sent("good-", 4)
	if err != nil {
		return err
	}
	bad, err := r.sent("bad-", 2)
	if err != nil {
		return err
	}
	for i := 0; i < 3; i++ {
		bodies = append(bodies, bad...)
	}
	return box.expect(r, bodies)
}

func retryDLQ(r *run) error {
	box := &inbox{}
	_, err := r.push(r.group, r.topic, tags("*"), func(message *primitive.MessageExt) consumer.ConsumeResult {
		box.accept(message)
		return consumer.ConsumeRetryLater
	}, consumer.WithMaxReconsumeTimes(2))
	if err != nil {
		return err
	}
	sent, err := r.sent("dead-", 2)
	if err != nil {
		return err
	}
	if err := box.expect(r, append(append(append([]string{}, sent...), sent...), sent...)); err != nil {
		return err
	}
	// The dead letters' topic was made readable beforehand.
	letters := &inbox{}
	if _, err := r.push(r.group+"-reader", "%DLQ%"+r.group, tags("*"), letters.accept); err != nil {
		return err
	}
	if err := letters.expect(r, sent); err != nil {
		return err
	}
	r.counts["dead"], r.counts["received"] = letters.size(), box.size()
	return nil
}

func requestReply(r *run) error {
	replier, err := r.producer()
	if err != nil {
		return err
	}
	// A producer of this client is known to the broker after a heart beat only; a consumer of the same name sends one.
	shared := instance()
	p, err := r.producer(producer.WithInstanceName(shared))
	if err != nil {
		return err
	}
	var failed atomic.Value
	_, err = r.push(r.group, r.topic, tags("*"), func(message *primitive.MessageExt) consumer.ConsumeResult {
		reply, err := consumer.CreateReplyMessage(message, nil)
		if err == nil {
			reply.Body = append([]byte("re: "), message.Body...) // the client itself forgets the body
			_, err = replier.SendSync(background, reply)
		}
		if err != nil {
			failed.Store(err)
		}
		return consumer.ConsumeSuccess
	}, consumer.WithInstance(shared))
	if err != nil {
		return err
	}
	for i := 0; i < 5; i++ {
		question := fmt.Sprintf("question %d", i)
		reply, err := p.Request(background, 20*time.Second, primitive.NewMessage(r.topic, []byte(question)))
		if err != nil {
			return fmt.Errorf("%w; the replier: %v", err, failed.Load())
		}
		if err := equal("re: "+question, string(reply.Body), "the reply"); err != nil {
			return err
		}
	}
	r.counts["replies"] = 5
	return nil
}

// listener decides transactions as their properties say.
type listener struct {
	lock     sync.Mutex
	asked    map[string]int
	executed int
}

var states = map[string]primitive.LocalTransactionState{
	"commit": primitive.CommitMessageState, "rollback": primitive.RollbackMessageState, "unknown": primitive.UnknowState,
}

func (l *listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.executed++
	return states[message.GetProperty("first")]
}

func (l *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.asked[string(message.Body)]++
	return states[message.GetProperty("then")]
}

func (l *listener) size() int {
	l.lock.Lock()
	defer l.lock.Unlock()
	return len(l.asked)
}

func transactions(r *run, count int, first, then string) (*listener, *inbox, []string, error) {
	l := &listener{asked: map[string]int{}}
	p, err := rocketmq.NewTransactionProducer(l, r.producerOptions(producer.WithGroupName(r.group+"-tx"))...)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := p.Start(); err != nil {
		return nil, nil, nil, err
	}
	r.closing = append(r.closing, func() { _ = p.Shutdown() })
	box, err := r.inbox()
	if err != nil {
		return nil, nil, nil, err
	}
	bodies := []string{}
	for i := 0; i < count; i++ {
		message := primitive.NewMessage(r.topic, []byte(fmt.Sprintf("tx-%d", i)))
		message.WithProperty("first", first)
		message.WithProperty("then", then)
		sent, err := p.SendMessageInTransaction(background, message)
		if err != nil {
			return nil, nil, nil, err
		}
		if err := accepted(sent.SendResult, nil); err != nil {
			return nil, nil, nil, err
		}
		bodies = append(bodies, string(message.Body))
	}
	return l, box, bodies, nil
}

func decided(r *run, state string) error {
	l, box, bodies, err := transactions(r, 5, state, state)
	if err != nil {
		return err
	}
	plain, err := r.sent("plain-", 1)
	if err != nil {
		return err
	}
	if state == "rollback" {
		bodies = nil
	}
	bodies = append(bodies, plain...)
	if err := box.expect(r, bodies); err != nil {
		return err
	}
	time.Sleep(2500 * time.Millisecond)
	r.counts["executed"], r.counts["asked"] = l.executed, l.size()
	return box.expect(r, bodies)
}

func checked(r *run, then string) error {
	l, box, bodies, err := transactions(r, 3, "unknown", then)
	if err != nil {
		return err
	}
	if err := until(func() bool { return l.size() == 3 }, "the broker asks about each"); err != nil {
		return err
	}
	if then == "rollback" {
		time.Sleep(2 * time.Second)
		bodies = nil
	}
	r.counts["asked"] = l.size()
	return box.expect(r, bodies)
}

func txCommit(r *run) error        { return decided(r, "commit") }
func txRollback(r *run) error      { return decided(r, "rollback") }
func txCheckCommit(r *run) error   { return checked(r, "commit") }
func txCheckRollback(r *run) error { return checked(r, "rollback") }
