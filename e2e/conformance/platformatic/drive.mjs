// Drives @platformatic/kafka for the conformance tests: asks come in on stdin and replies go out on stdout, one JSON
// object a line.

import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import {
  Admin, ConfigResourceTypes, Consumer, IncrementalAlterConfigOperationTypes, MessagesStreamFallbackModes,
  MessagesStreamModes, Producer
} from '@platformatic/kafka'

const patience = 30_000 // milliseconds that an operation may take
const options = { clientId: 'platformatic', bootstrapBrokers: [process.env.LEAT_BOOTSTRAP] }
// A group of its own for each consumer that is no member of one: this client has no consumer without.
const nobody = `platformatic-${process.pid}-`
let readers = 0

class NotOffered extends Error {}

const decode = text => text === null ? undefined : Buffer.from(text, 'base64')
const encode = data => data === null || data === undefined ? null : data.toString('base64')

function tell (message) {
  return {
    key: encode(message.key),
    value: encode(message.value),
    headers: message.headerEntries.map(([key, value]) => ({ key: key.toString(), value: encode(value) })),
    timestamp: Number(message.timestamp),
    partition: message.partition,
    offset: Number(message.offset)
  }
}

async function withClient (client, use) {
  try {
    return await use(client)
  } finally {
    await client.close(true)
  }
}

let adminClient
const admin = () => (adminClient ??= new Admin(options))

// What is known of the group that this process is a member of.
let member, stream, revoked, assigned, fresh, uncommitted

// watch counts what rebalances took away: with this client's assignors, all that the member had.
function watch (consumer) {
  consumer.on('consumer:group:join', ({ assignments }) => {
    revoked += assigned.length
    assigned = (assignments ?? []).flatMap(a => a.partitions)
  })
}

// until waits for the next event of those that can make the condition true, or for the deadline.
async function until (emitter, events, condition, milliseconds) {
  const deadline = Date.now() + milliseconds
  while (!condition() && Date.now() < deadline) {
    await new Promise(resolve => {
      const wake = () => {
        clearTimeout(timer)
        for (const event of events) emitter.off(event, wake)
        resolve()
      }
      const timer = setTimeout(wake, deadline - Date.now())
      for (const event of events) emitter.on(event, wake)
    })
  }
}

const topicResource = topic => ({ resourceType: ConfigResourceTypes.TOPIC, resourceName: topic })

const operations = {
  async hello () {
    const file = new URL('node_modules/@platformatic/kafka/package.json', import.meta.url)
    return { version: JSON.parse(readFileSync(file)).version }
  },

  async metadata () {
    const topics = await admin().listTopics() // it knows nothing about internal ones
    const found = await admin().metadata({ topics, forceUpdate: true })
    return {
      topics: Object.fromEntries([...found.topics].map(([name, topic]) => [name, topic.partitions.length])),
      nodes: found.brokers.size,
      cluster: found.id
    }
  },

  async produce (ask) {
    const messages = ask.records.map(r => ({
      topic: ask.topic,
      partition: ask.partition,
      key: decode(r.key),
      value: decode(r.value),
      headers: new Map((r.headers ?? []).map(h => [Buffer.from(h.key), decode(h.value)])),
      timestamp: r.timestamp === 0 ? undefined : BigInt(r.timestamp)
    }))
    await withClient(new Producer({
      ...options, idempotent: ask.idempotent, autocreateTopics: true, retries: 0
    }), producer => producer.send({
      messages,
      acks: ask.acks === 'all' ? -1 : Number(ask.acks),
      compression: ask.codec || 'none'
    }))
  },

  async read (ask) {
    const at = { topic: ask.topic, partition: ask.partition, offset: BigInt(ask.offset) }
    if (ask.at !== 'offset') at.offset = await listOffset(ask)
    const consumer = new Consumer({ ...options, groupId: `${nobody}${readers++}`, autocommit: false, maxWaitTime: 200 })
    return withClient(consumer, async () => {
      const stream = await consumer.consume({ topics: [ask.topic], mode: MessagesStreamModes.MANUAL, offsets: [at] })
      const messages = []
      let failed
      stream.on('data', message => message.partition === ask.partition && messages.push(message)).on('error', error => { failed = error })
      await until(stream, ['data', 'error'], () => failed || messages.length >= ask.count, patience)
      if (failed) throw failed
      return { records: messages.slice(0, ask.count).map(tell) }
    })
  },

  async join (ask) {
    if (ask.strategy === 'cooperative') throw new NotOffered('no cooperative assignor')
    member = new Consumer({
      ...options,
      groupId: ask.group,
      groupInstanceId: ask.instance || undefined,
      autocommit: false,
      sessionTimeout: patience,
      rebalanceTimeout: patience,
      heartbeatInterval: 500,
      maxWaitTime: 200
    })
    revoked = 0
    assigned = []
    fresh = []
    uncommitted = new Map()
    watch(member)
    stream = await member.consume({
      topics: [ask.topic], mode: MessagesStreamModes.COMMITTED, fallbackMode: MessagesStreamFallbackModes.EARLIEST
    })
    stream.on('data', message => fresh.push(message)).on('error', error => console.error(error))
  },

  async poll () {
    await until(stream, ['data'], () => fresh.length > 0, 200)
    const records = fresh
    fresh = []
    for (const r of records) {
      uncommitted.set(r.partition, { topic: r.topic, partition: r.partition, offset: r.offset + 1n, leaderEpoch: r.leaderEpoch })
    }
    return { records: records.map(tell), assigned: [...assigned].sort((a, b) => a - b), revoked }
  },

  async commit () {
    const offsets = [...uncommitted.values()].filter(o => assigned.includes(o.partition))
    uncommitted.clear()
    if (offsets.length > 0) await member.commit({ offsets })
  },

  async leave () {
    await member.close(true)
    member = undefined
  },

  async create_topic (ask) {
    const configs = Object.entries(ask.configs ?? {}).map(([name, value]) => ({ name, value }))
    await admin().createTopics({ topics: [ask.topic], partitions: ask.partitions, replicas: -1, configs })
  },

  async delete_topic (ask) {
    await admin().deleteTopics({ topics: [ask.topic] })
  },

  async create_partitions (ask) {
    await admin().createPartitions({ topics: [{ name: ask.topic, count: ask.partitions, assignments: null }] })
  },

  async describe_configs (ask) {
    const [found] = await admin().describeConfigs({ resources: [{ ...topicResource(ask.topic), configurationKeys: null }] })
    return { configs: Object.fromEntries(found.configs.map(c => [c.name, c.value])) }
  },

  async alter_configs (ask) {
    const { SET, DELETE } = IncrementalAlterConfigOperationTypes
    const configs = [
      ...Object.entries(ask.configs ?? {}).map(([name, value]) => ({ name, value, configOperation: SET })),
      ...(ask.unset ?? []).map(name => ({ name, configOperation: DELETE }))
    ]
    await admin().incrementalAlterConfigs({ resources: [{ ...topicResource(ask.topic), configs }] })
  },

  async replace_configs (ask) {
    const configs = Object.entries(ask.configs ?? {}).map(([name, value]) => ({ name, value }))
    await admin().alterConfigs({ resources: [{ ...topicResource(ask.topic), configs }] })
  },

  async delete_records (ask) {
    await admin().deleteRecords({ topics: [{ name: ask.topic, partitions: [{ partition: ask.partition, offset: BigInt(ask.offset) }] }] })
  },

  async list_offset (ask) {
    return { offset: Number(await listOffset(ask)) }
  },

  async list_groups () {
    return { groups: [...(await admin().listGroups({ types: ['classic'] })).keys()] }
  },

  async describe_group (ask) {
    const found = (await admin().describeGroups({ groups: [ask.group] })).get(ask.group)
    return { state: found.state, members: found.members.size }
  },

  async delete_group (ask) {
    await admin().deleteGroups({ groups: [ask.group] })
  },

  async commit_offsets (ask) {
    const partitionOffsets = Object.entries(ask.offsets).map(([partition, offset]) => ({ partition: Number(partition), offset: BigInt(offset) }))
    await admin().alterConsumerGroupOffsets({ groupId: ask.group, topics: [{ name: ask.topic, partitionOffsets }] })
  },

  async committed (ask) {
    const [found] = await admin().listConsumerGroupOffsets({ groups: [ask.group] })
    const partitions = found.topics.filter(t => t.name === ask.topic).flatMap(t => t.partitions)
    return { offsets: Object.fromEntries(partitions.filter(p => p.committedOffset >= 0n).map(p => [p.partitionIndex, Number(p.committedOffset)])) }
  },

  async delete_offsets (ask) {
    await admin().deleteConsumerGroupOffsets({
      groupId: ask.group, topics: [{ name: ask.topic, partitionIndexes: Object.keys(ask.offsets).map(Number) }]
    })
  }
}

// listOffset is the offset of a place in a partition.
async function listOffset (ask) {
  const timestamp = { earliest: -2n, latest: -1n, time: BigInt(ask.offset) }[ask.at]
  const [found] = await admin().listOffsets({ topics: [{ name: ask.topic, partitions: [{ partitionIndex: ask.partition, timestamp }] }] })
  return found.partitions[0].offset
}

// words tells an error with all that it was made of: Kafka's name for it is in an inner one.
function words (error) {
  const inner = [...(error.errors ?? []), ...(error.cause ? [error.cause] : [])]
  return [`${error.apiId ?? error.code ?? error.name}: ${error.message}`, ...inner.map(words)].join('; ')
}

for await (const line of createInterface({ input: process.stdin })) {
  const ask = JSON.parse(line)
  let reply
  try {
    if (!Object.hasOwn(operations, ask.op)) throw new NotOffered(`no ${ask.op}`)
    reply = await operations[ask.op](ask) ?? {}
  } catch (error) {
    if (!(error instanceof NotOffered)) console.error(error)
    reply = error instanceof NotOffered ? { not_offered: error.message } : { error: words(error) }
  }
  console.log(JSON.stringify(reply))
}
if (member) await member.close(true)
if (adminClient) await adminClient.close()
