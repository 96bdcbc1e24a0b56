package main

import (
	"context"
	"fmt"
	"math/rand"
	"reflect"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const patience = 90 * time.Second

var instances atomic.Int64

// run is the surroundings of one case: names, clients that are stopped at its end, and the counts that it reports.
type run struct {
	nameServer, topic, group string
	counts                   map[string]any
	closing                  []func()
}

func newRun(nameServer, prefix, name string) *run {
	return &run{nameServer: nameServer, topic: prefix + "-" + name, group: prefix + "-" + name, counts: map[string]any{}}
}

func (r *run) close() {
	for i := len(r.closing) - 1; i >= 0; i-- {
		r.closing[i]()
	}
}

func (r *run) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{r.nameServer})
}

func instance() string {
	return fmt.Sprintf("i%d", instances.Add(1))
}

func (r *run) producerOptions(more ...producer.Option) []producer.Option {
	return append([]producer.Option{
		producer.WithGroupName(r.group + "-producer"),
		producer.WithNsResolver(r.resolver()),
		producer.WithInstanceName(instance()),
		producer.WithSendMsgTimeout(20 * time.Second),
		producer.WithRetry(2),
	}, more...)
}

func (r *run) producer(more ...producer.Option) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(r.producerOptions(more...)...)
	if err != nil {
		return nil, err
	}
	r.closing = append(r.closing, func() { _ = p.Shutdown() })
	return p, p.Start()
}

type handler func(*primitive.MessageExt) consumer.ConsumeResult

// push starts a push consumer of a topic; the returned function stops it.
func (r *run) push(group, topic string, selector consumer.MessageSelector, handle handler, more ...consumer.Option) (func(), error) {
	options := append([]consumer.Option{
		consumer.WithGroupName(group),
		consumer.WithNsResolver(r.resolver()),
		consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumeGoroutineNums(4),
	}, more...)
	c, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	err = c.Subscribe(topic, selector, func(_ context.Context, some ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		last := consumer.ConsumeSuccess
		for _, message := range some {
			last = handle(message)
		}
		return last, nil
	})
	if err != nil {
		return nil, err
	}
	var once sync.Once
	stop := func() { once.Do(func() { _ = c.Shutdown() }) }
	r.closing = append(r.closing, stop)
	return stop, c.Start()
}

func (r *run) inbox() (*inbox, error) {
	return r.inboxOf(r.group, consumer.MessageSelector{})
}

func (r *run) inboxOf(group string, selector consumer.MessageSelector) (*inbox, error) {
	box := &inbox{}
	_, err := r.push(group, r.topic, selector, box.accept)
	return box, err
}

func (r *run) send(p rocketmq.Producer, prefix string, count int) ([]string, error) {
	var bodies []string
	for i := 0; i < count; i++ {
		body := fmt.Sprintf("%s%d", prefix, i)
		if err := accepted(p.SendSync(context.Background(), primitive.NewMessage(r.topic, []byte(body)))); err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	return bodies, nil
}

func accepted(sent *primitive.SendResult, err error) error {
	if err != nil {
		return err
	}
	if sent.Status != primitive.SendOK {
		return fmt.Errorf("status %v of a send", sent.Status)
	}
	return nil
}

// inbox is what consumers got, in the order of arrival.
type inbox struct {
	lock     sync.Mutex
	messages []*primitive.MessageExt
	times    []time.Time
}

func (b *inbox) accept(message *primitive.MessageExt) consumer.ConsumeResult {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.messages = append(b.messages, message)
	b.times = append(b.times, time.Now())
	return consumer.ConsumeSuccess
}

func (b *inbox) all() []*primitive.MessageExt {
	b.lock.Lock()
	defer b.lock.Unlock()
	return append([]*primitive.MessageExt{}, b.messages...)
}

func (b *inbox) size() int { return len(b.all()) }

func (b *inbox) bodies() []string {
	bodies := []string{}
	for _, message := range b.all() {
		bodies = append(bodies, string(message.Body))
	}
	return bodies
}

func (b *inbox) byQueue() map[int][]string {
	queues := map[int][]string{}
	for _, message := range b.all() {
		queues[message.Queue.QueueId] = append(queues[message.Queue.QueueId], string(message.Body))
	}
	return queues
}

func (b *inbox) expect(r *run, bodies []string) error {
	if err := until(func() bool { return b.size() >= len(bodies) }, "all messages arrive"); err != nil {
		return fmt.Errorf("%w: %d of %d", err, b.size(), len(bodies))
	}
	b.settle()
	r.counts["received"] = b.size()
	return equal(sorted(bodies), sorted(b.bodies()), "the bodies received")
}

// settle waits until nothing has come for a while: what is too much would come now.
func (b *inbox) settle() {
	for before := -1; before != b.size(); {
		before = b.size()
		time.Sleep(400 * time.Millisecond)
	}
}

func until(holds func() bool, what string) error {
	for end := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s", patience, what)
		}
	}
	return nil
}

func equal(expected, found any, what string) error {
	if !reflect.DeepEqual(expected, found) {
		return fmt.Errorf("%s: expected %.500v, found %.500v", what, fmt.Sprint(expected), fmt.Sprint(found))
	}
	return nil
}

func sorted(values []string) []string {
	copied := append([]string{}, values...)
	sort.Strings(copied)
	return copied
}

func noise(size int) []byte {
	bytes := make([]byte, size)
	rand.New(rand.NewSource(int64(size))).Read(bytes)
	return bytes
}

func text(size int) []byte {
	bytes := make([]byte, size)
	for i := range bytes {
		bytes[i] = byte('a' + i%23)
	}
	return bytes
}
