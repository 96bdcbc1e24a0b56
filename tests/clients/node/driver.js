'use strict';

// Runs cases of the Node client by name and prints a JSON line for each: driver.js NAME_SERVER PREFIX PARALLEL CASE...

const crypto = require('crypto');
const { Consumer, Producer, Message } = require('ali-ons');

const PATIENCE = 90000;
const quiet = { info() {}, warn() {}, error() {}, debug() {} };
const HTTP = { async request() { return { status: 200, data: Buffer.from('') }; } };
let instances = 0;

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

function equal(expected, found, what) {
  const [ a, b ] = [ JSON.stringify(expected), JSON.stringify(found) ];
  if (a !== b) throw new Error(`${what}: expected ${a.slice(0, 500)}, found ${b.slice(0, 500)}`);
}

async function until(holds, what) {
  const end = Date.now() + PATIENCE;
  while (!await holds()) {
    if (Date.now() > end) throw new Error(`not within ${PATIENCE} ms: ${what()}`);
    await sleep(20);
  }
}

// What consumers got, in the order of arrival.
class Inbox {
  constructor() {
    this.got = [];
    this.times = [];
  }

  add(message) {
    this.got.push(message);
    this.times.push(Date.now());
  }

  bodies() {
    return this.got.map(message => message.body.toString());
  }

  async settle() {
    for (let before = -1; before !== this.got.length;) {
      before = this.got.length;
      await sleep(400);
    }
  }

  async expect(run, bodies) {
    await until(() => this.got.length >= bodies.length, () => `got ${this.got.length} of ${bodies.length}`);
    await this.settle();
    run.counts.received = this.got.length;
    equal([ ...bodies ].sort(), this.bodies().sort(), 'the bodies received');
  }
}

// The surroundings of one case: names, clients that are closed at its end, and the counts that it reports.
class Run {
  constructor(nameServer, prefix, name) {
    this.nameServer = nameServer;
    this.topic = this.group = `${prefix}-${name}`;
    this.counts = {};
    this.closing = [];
  }

  options(more) {
    return Object.assign({
      httpclient: HTTP, nameSrv: this.nameServer, logger: quiet, instanceName: `i${instances++}`,
      rebalanceInterval: 1000, pollNameServerInteval: 5000, persistConsumerOffsetInterval: 500,
    }, more);
  }

  async producer(more) {
    const producer = new Producer(this.options(Object.assign({
      producerGroup: `${this.group}-producer`, sendMsgTimeout: 20000, retryTimesWhenSendFailed: 0,
    }, more)));
    producer.on('error', () => {});
    this.closing.push(() => producer.close());
    await producer.ready();
    return producer;
  }

  async push(handle, { group = this.group, expression = '*', ...more } = {}) {
    const consumer = new Consumer(this.options(Object.assign({
      consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    }, more)));
    consumer.on('error', () => {});
    consumer.subscribe(this.topic, expression, async message => handle(message));
    await consumer.ready();
    let closed = false;
    const close = async () => {
      if (!closed) {
        closed = true;
        await consumer.close();
      }
    };
    this.closing.push(close);
    return close;
  }

  async inbox(more) {
    const inbox = new Inbox();
    await this.push(message => inbox.add(message), more);
    return inbox;
  }

  message(body, tags) {
    return new Message(this.topic, tags || '', body);
  }

  async send(producer, prefix, count) {
    const bodies = [];
    for (let i = 0; i < count; i++) {
      bodies.push(`${prefix}${i}`);
      accepted(await producer.send(this.message(bodies[i])));
    }
    return bodies;
  }
}

function accepted(result) {
  equal('SEND_OK', result.sendStatus, 'the status of a send');
  return result;
}

const text = size => Buffer.alloc(size, 'abcdefghijklmnopqrstuvw');

async function body(run, bytes) {
  const producer = await run.producer();
  accepted(await producer.send(run.message(Buffer.from(bytes))));
  const inbox = await run.inbox();
  await until(() => inbox.got.length >= 1, () => 'the message arrives');
  await inbox.settle();
  run.counts.received = inbox.got.length;
  if (!inbox.got[0].body.equals(bytes)) throw new Error(`another body of ${inbox.got[0].body.length} bytes`);
}

const cases = {
  async 'send-sync'(run) {
    const producer = await run.producer();
    const results = [];
    for (let i = 0; i < 20; i++) results.push(accepted(await producer.send(run.message(`sync-${i}`))));
    run.counts.ids = new Set(results.map(result => result.msgId)).size;
    await (await run.inbox()).expect(run, results.map((_, i) => `sync-${i}`));
  },
  async 'send-parallel'(run) {
    const producer = await run.producer();
    const numbers = [ ...Array(100).keys() ];
    const results = await Promise.all(numbers.map(i => producer.send(run.message(`async-${i}`))));
    run.counts.accepted = results.filter(result => result.sendStatus === 'SEND_OK').length;
    await (await run.inbox()).expect(run, numbers.map(i => `async-${i}`));
  },
  async 'send-properties'(run) {
    const producer = await run.producer();
    const message = run.message('žluťoučký 消息 🚀', 'TagA');
    message.keys = [ 'k1', 'k2' ];
    message.properties.colour = 'red 🚀';
    accepted(await producer.send(message));
    const inbox = await run.inbox();
    await inbox.expect(run, [ 'žluťoučký 消息 🚀' ]);
    const got = inbox.got[0];
    equal([ 'TagA', 'k1 k2', 'red 🚀', run.topic ], [ got.tags, got.keys, got.properties.colour, got.topic ],
      'tag, keys, property, topic');
  },
  async 'send-selector'(run) {
    const producer = await run.producer();
    const [ bodies, queueOf ] = [ [], {}];
    for (let i = 0; i < 24; i++) {
      bodies.push(`order-${i % 6}-${Math.floor(i / 6)}`);
      const message = run.message(bodies[i]);
      message.properties.__SHARDINGKEY = `${i % 6}`;
      message.shardingKey = `${i % 6}`;
      const queue = accepted(await producer.send(message)).messageQueue.queueId;
      // This client takes a key of queue 0 for none.
      const hash = crypto.createHash('md5').update(`${i % 6}`).digest().readUInt32BE() % 4;
      if (i % 6 in queueOf && hash !== 0) equal(queueOf[i % 6], queue, `the queue of key ${i % 6}`);
      queueOf[i % 6] = queue;
    }
    await (await run.inbox()).expect(run, bodies);
  },
  'body-1-byte': run => body(run, Buffer.from([ 7 ])),
  'body-3-mib-noise': run => body(run, crypto.randomBytes(3 << 20)),
  'body-3-mib-text': run => body(run, text(3 << 20)),
  'body-compressed': run => body(run, text(100000)),
  async 'delay-level'(run) {
    const producer = await run.producer();
    const inbox = await run.inbox();
    accepted(await producer.send(run.message('now')));
    await until(() => inbox.got.length === 1, () => 'the consumer works');
    const message = run.message('later');
    message.delayTimeLevel = 5;
    const start = Date.now();
    accepted(await producer.send(message));
    await inbox.expect(run, [ 'now', 'later' ]);
    const waited = inbox.times[1] - start;
    if (waited < 1900) throw new Error(`delivered after ${waited} ms instead of 2000`);
  },
  async oversize(run) {
    const producer = await run.producer({ compressMsgBodyOverHowmuch: 16 << 20 });
    let code = 0;
    try {
      await producer.send(run.message(crypto.randomBytes((4 << 20) + 1)));
    } catch (error) {
      code = error.code;
    }
    run.counts.code = code;
    const bodies = await run.send(producer, 'after-', 4);
    await (await run.inbox()).expect(run, bodies);
  },
  async 'push-concurrent'(run) {
    const inbox = await run.inbox({ parallelConsumeLimit: 4 });
    await inbox.expect(run, await run.send(await run.producer(), 'a-', 60));
  },
  async 'push-broadcast'(run) {
    const inboxes = [ await run.inbox({ isBroadcast: true }), await run.inbox({ isBroadcast: true }) ];
    const bodies = await run.send(await run.producer(), 'to-all-', 20);
    for (const inbox of inboxes) await inbox.expect(run, bodies);
  },
  async 'long-poll'(run) {
    const inbox = await run.inbox();
    const producer = await run.producer();
    await run.send(producer, 'warm-', 8);
    await until(() => inbox.got.length === 8, () => 'the consumer works');
    await sleep(500);
    for (let i = 0; i < 10; i++) {
      const start = Date.now();
      await run.send(producer, `m${i}-`, 1);
      await until(() => inbox.got.length === 9 + i, () => 'the message arrives');
      const waited = inbox.times[8 + i] - start;
      if (waited > 4000) throw new Error(`a message waited ${waited} ms: a held pull was not woken`);
    }
    run.counts.received = inbox.got.length;
  },
  async 'filter-tag'(run) {
    const producer = await run.producer();
    const bodies = [];
    for (let i = 0; i < 12; i++) {
      bodies.push(`${'ABC'[i % 3]}${i}`);
      accepted(await producer.send(run.message(bodies[i], 'ABC'[i % 3])));
    }
    let total = 0;
    for (const [ suffix, expression, first ] of [ [ '', 'A || C', 'AC' ], [ '-b', 'B', 'B' ], [ '-all', '*', 'ABC' ], [ '-none', 'Z', '' ] ]) {
      const expected = bodies.filter(one => first.includes(one[0]));
      const inbox = await run.inbox({ group: run.group + suffix, expression });
      await inbox.expect(run, expected);
      total += expected.length;
    }
    run.counts.received = total;
  },
  async 'filter-sql'(run) {
    const producer = await run.producer();
    for (let i = 0; i < 12; i++) {
      const message = run.message(`m${i}`, i % 2 ? 'odd' : 'even');
      message.properties.number = `${i}`;
      message.properties.name = `n${i % 3}`;
      accepted(await producer.send(message));
    }
    let total = 0;
    for (const [ suffix, subString, expected ] of [
      [ '-1', 'number BETWEEN 3 AND 6', [ 'm3', 'm4', 'm5', 'm6' ]],
      [ '-2', "name IN ('n0', 'n1') AND number > 5 AND TAGS = 'even'", [ 'm6', 'm10' ]],
      [ '-3', 'NOT (number < 10)', [ 'm10', 'm11' ]],
    ]) {
      const inbox = await run.inbox({ group: run.group + suffix, expression: { expressionType: 'SQL92', subString } });
      await inbox.expect(run, expected);
      total += expected.length;
    }
    run.counts.received = total;
  },
  async 'from-first'(run) {
    const bodies = await run.send(await run.producer(), 'before-', 10);
    await (await run.inbox()).expect(run, bodies);
  },
  async 'offsets-restart'(run) {
    const producer = await run.producer();
    const bodies = await run.send(producer, 'a-', 20);
    const inbox = new Inbox();
    for (let part = 0; part < 3; part++) {
      const close = await run.push(message => inbox.add(message));
      await until(() => inbox.got.length >= bodies.length, () => `part ${part}: ${inbox.got.length}`);
      await sleep(300);
      await close();
      bodies.push(...await run.send(producer, `between-${part}-`, 10));
    }
    await run.push(message => inbox.add(message));
    await inbox.expect(run, bodies);
  },
  async 'rebalance-two'(run) {
    const inboxes = [ await run.inbox(), await run.inbox() ];
    const producer = await run.producer();
    const sent = new Set();
    for (let round = 0; round < 100; round++) {
      for (const one of await run.send(producer, `probe-${round}-`, 4)) sent.add(one);
      await sleep(500);
      const queues = inboxes.map(inbox => new Set(inbox.got.slice(-20).map(message => message.queueId)).size);
      if (round >= 4 && queues.every(count => count === 2)) break;
    }
    const known = () => new Set(inboxes.flatMap(inbox => inbox.bodies())).size;
    await until(() => known() === sent.size, () => 'all probes arrive');
    const before = inboxes.map(inbox => inbox.got.length);
    await run.send(producer, 'shared-', 40);
    const counts = () => inboxes.map((inbox, i) => inbox.got.length - before[i]);
    await until(() => counts()[0] + counts()[1] >= 40, () => 'all messages arrive');
    await inboxes[0].settle();
    const [ first, second ] = counts();
    Object.assign(run.counts, { received: first + second, first, second });
  },
  async 'two-groups'(run) {
    const inboxes = [ await run.inbox({ group: `${run.group}-1` }), await run.inbox({ group: `${run.group}-2` }) ];
    const bodies = await run.send(await run.producer(), 'm-', 20);
    for (const inbox of inboxes) await inbox.expect(run, bodies);
    run.counts.received = inboxes[0].got.length + inboxes[1].got.length;
  },
  async 'retry-later'(run) {
    const inbox = new Inbox();
    await run.push(message => {
      inbox.add(message);
      if (message.body.toString().startsWith('bad') && message.reconsumeTimes < 2) throw new Error('refused');
    });
    const producer = await run.producer();
    const good = await run.send(producer, 'good-', 4);
    const bad = await run.send(producer, 'bad-', 2);
    await inbox.expect(run, [ ...good, ...bad, ...bad, ...bad ]);
  },
};

async function runCase(name, nameServer, prefix) {
  const start = Date.now();
  const run = new Run(nameServer, prefix, name);
  const line = { case: name, ok: true, counts: run.counts };
  try {
    await cases[name](run);
  } catch (error) {
    Object.assign(line, { ok: false, detail: `${error.stack}`.slice(0, 700) });
  }
  line.milliseconds = Date.now() - start;
  console.log(JSON.stringify(line));
  for (const close of run.closing.reverse()) await Promise.race([ close().catch(() => {}), sleep(5000) ]);
}

async function main() {
  const [ nameServer, prefix, parallel, ...names ] = process.argv.slice(2);
  const left = [ ...names ];
  const worker = async () => {
    while (left.length) await runCase(left.shift(), nameServer, prefix);
  };
  await Promise.all([ ...Array(Number(parallel)).keys() ].map(worker));
  process.exit(0);
}

process.on('unhandledRejection', () => {});
main();
