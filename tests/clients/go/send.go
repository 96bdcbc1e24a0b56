package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var background = context.Background()

func sendSync(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	ids, offsetIDs, next, bodies := map[string]bool{}, map[string]bool{}, map[int]int64{}, []string{}
	for i := 0; i < 20; i++ {
		body := fmt.Sprintf("sync-%d", i)
		sent, err := p.SendSync(background, primitive.NewMessage(r.topic, []byte(body)))
		if err := accepted(sent, err); err != nil {
			return err
		}
		ids[sent.MsgID], offsetIDs[sent.OffsetMsgID] = true, true
		queue := sent.MessageQueue.QueueId
		if err := equal(next[queue], sent.QueueOffset, "a queue offset"); err != nil {
			return err
		}
		next[queue]++
		bodies = append(bodies, body)
	}
	r.counts["ids"], r.counts["offset ids"] = len(ids), len(offsetIDs)
	box, err := r.inbox()
	if err != nil {
		return err
	}
	return box.expect(r, bodies)
}

func sendAsync(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	var left sync.WaitGroup
	var ok atomic.Int64
	bodies := []string{}
	for i := 0; i < 100; i++ {
		body := fmt.Sprintf("async-%d", i)
		bodies = append(bodies, body)
		left.Add(1)
		err := p.SendAsync(background, func(_ context.Context, sent *primitive.SendResult, err error) {
			if accepted(sent, err) == nil {
				ok.Add(1)
			}
			left.Done()
		}, primitive.NewMessage(r.topic, []byte(body)))
		if err != nil {
			return err
		}
	}
	left.Wait()
	r.counts["accepted"] = ok.Load()
	box, err := r.inbox()
	if err != nil {
		return err
	}
	return box.expect(r, bodies)
}

func sendOneway(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	bodies := []string{}
	for i := 0; i < 20; i++ {
		body := fmt.Sprintf("oneway-%d", i)
		bodies = append(bodies, body)
		if err := p.SendOneWay(background, primitive.NewMessage(r.topic, []byte(body))); err != nil {
			return err
		}
	}
	box, err := r.inbox()
	if err != nil {
		return err
	}
	return box.expect(r, bodies)
}

func sendBatch(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	messages, bodies := []*primitive.Message{}, []string{}
	for i := 0; i < 10; i++ {
		bodies = append(bodies, fmt.Sprintf("batch-%d", i))
		messages = append(messages, primitive.NewMessage(r.topic, []byte(bodies[i])))
	}
	sent, err := p.SendSync(background, messages...)
	if err := accepted(sent, err); err != nil {
		return err
	}
	box, err := r.inbox()
	if err != nil {
		return err
	}
	if err := box.expect(r, bodies); err != nil {
		return err
	}
	for _, message := range box.all() {
		var i int64
		if _, err := fmt.Sscanf(string(message.Body), "batch-%d", &i); err != nil {
			return err
		}
		if err := equal(sent.QueueOffset+i, message.QueueOffset, "a queue offset"); err != nil {
			return err
		}
	}
	return nil
}

func sendProperties(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	message := primitive.NewMessage(r.topic, []byte("žluťoučký 消息 🚀"))
	message.WithTag("TagA").WithKeys([]string{"k1", "k2"})
	message.WithProperty("colour", "red")
	message.WithProperty("名前", "zoë 🚀")
	sent, err := p.SendSync(background, message)
	if err := accepted(sent, err); err != nil {
		return err
	}
	box, err := r.inbox()
	if err != nil {
		return err
	}
	if err := box.expect(r, []string{"žluťoučký 消息 🚀"}); err != nil {
		return err
	}
	got := box.all()[0]
	found := []string{got.GetTags(), got.GetKeys(), got.GetProperty("colour"), got.GetProperty("名前"), got.Topic}
	if err := equal([]string{"TagA", "k1 k2", "red", "zoë 🚀", r.topic}, found, "tag, keys, properties"); err != nil {
		return err
	}
	return equal(sent.QueueOffset, got.QueueOffset, "the queue offset")
}

func sendSelector(r *run) error {
	p, err := r.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err != nil {
		return err
	}
	queueOf, bodies := map[int]int{}, []string{}
	for i := 0; i < 24; i++ {
		body := fmt.Sprintf("order-%d-%d", i%6, i/6)
		message := primitive.NewMessage(r.topic, []byte(body)).WithShardingKey(fmt.Sprint(i % 6))
		sent, err := p.SendSync(background, message)
		if err := accepted(sent, err); err != nil {
			return err
		}
		if before, known := queueOf[i%6]; known && before != sent.MessageQueue.QueueId {
			return fmt.Errorf("key %d went to two queues", i%6)
		}
		queueOf[i%6] = sent.MessageQueue.QueueId
		bodies = append(bodies, body)
	}
	box, err := r.inbox()
	if err != nil {
		return err
	}
	return box.expect(r, bodies)
}

func body(r *run, body []byte, count int) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	for i := 0; i < count; i++ {
		if err := accepted(p.SendSync(background, primitive.NewMessage(r.topic, body))); err != nil {
			return err
		}
	}
	box, err := r.inbox()
	if err != nil {
		return err
	}
	if err := until(func() bool { return box.size() >= count }, "the message arrives"); err != nil {
		return err
	}
	box.settle()
	for _, message := range box.all() {
		if !bytes.Equal(body, message.Body) {
			return fmt.Errorf("another body of %d bytes", len(message.Body))
		}
	}
	r.counts["received"] = box.size()
	return nil
}

func delayLevel(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	box, err := r.inbox()
	if err != nil {
		return err
	}
	if err := accepted(p.SendSync(background, primitive.NewMessage(r.topic, []byte("now")))); err != nil {
		return err
	}
	if err := until(func() bool { return box.size() == 1 }, "the consumer works"); err != nil {
		return err
	}
	start := time.Now()
	message := primitive.NewMessage(r.topic, []byte("later")).WithDelayTimeLevel(5)
	if err := accepted(p.SendSync(background, message)); err != nil {
		return err
	}
	if err := box.expect(r, []string{"now", "later"}); err != nil {
		return err
	}
	if waited := box.times[1].Sub(start); waited < 1900*time.Millisecond {
		return fmt.Errorf("delivered after %v instead of 2 s", waited)
	}
	return nil
}

func topicCreate(r *run) error {
	tool, err := admin.NewAdmin(admin.WithResolver(r.resolver()))
	if err != nil {
		return err
	}
	defer tool.Close()
	p, err := r.producer()
	if err != nil {
		return err
	}
	sent, err := p.SendSync(background, primitive.NewMessage(r.topic, []byte("where is the broker")))
	if err := accepted(sent, err); err != nil {
		return err
	}
	id, err := primitive.UnmarshalMsgID([]byte(sent.OffsetMsgID))
	if err != nil {
		return err
	}
	address := fmt.Sprintf("%s:%d", id.Addr, id.Port)
	name := r.topic + "-made"
	err = tool.CreateTopic(background, admin.WithTopicCreate(name), admin.WithBrokerAddrCreate(address),
		admin.WithReadQueueNums(3), admin.WithWriteQueueNums(3))
	if err != nil {
		return err
	}
	listed := func() bool {
		list, err := tool.FetchAllTopicList(background)
		if err != nil {
			return false
		}
		for _, topic := range list.TopicList {
			if topic == name {
				return true
			}
		}
		return false
	}
	if err := until(listed, "the topic is listed"); err != nil {
		return err
	}
	queues := map[int]bool{}
	for i := 0; i < 9; i++ {
		sent, err := p.SendSync(background, primitive.NewMessage(name, []byte("x")))
		if err := accepted(sent, err); err != nil {
			return err
		}
		queues[sent.MessageQueue.QueueId] = true
	}
	r.counts["queues"] = len(queues)
	if err := tool.DeleteTopic(background, admin.WithTopicDelete(name), admin.WithBrokerAddrDelete(address)); err != nil {
		return err
	}
	return until(func() bool { return !listed() }, "the topic is gone")
}

func topicAutoCreate(r *run) error {
	p, err := r.producer()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%d", r.topic, time.Now().UnixNano())
	queues := map[int]bool{}
	for i := 0; i < 8; i++ {
		sent, err := p.SendSync(background, primitive.NewMessage(name, []byte("first")))
		if err := accepted(sent, err); err != nil {
			return err
		}
		queues[sent.MessageQueue.QueueId] = true
	}
	r.counts["queues"] = len(queues)
	return nil
}

func oversize(r *run) error {
	p, err := r.producer(producer.WithCompressMsgBodyOverHowmuch(16<<20), producer.WithRetry(0))
	if err != nil {
		return err
	}
	_, err = p.SendSync(background, primitive.NewMessage(r.topic, noise(4<<20+1)))
	code := 0
	if _, scanned := fmt.Sscanf(fmt.Sprint(err), "CODE: %d", &code); scanned != nil {
		return fmt.Errorf("another answer: %v", err)
	}
	r.counts["code"] = code
	bodies, err := r.send(p, "after-", 4)
	if err != nil {
		return err
	}
	box, err := r.inboxOf(r.group, consumer.MessageSelector{})
	if err != nil {
		return err
	}
	return box.expect(r, bodies)
}
