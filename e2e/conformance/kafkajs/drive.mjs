// Drives KafkaJS for the conformance tests: asks come in on stdin and replies go out on stdout, one JSON object a line.

import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { EventEmitter, once } from 'node:events'
import kafkajs from 'kafkajs'
import SnappyCodec from 'kafkajs-snappy'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, Partitioners, logLevel } = kafkajs
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec

const kafka = new Kafka({
  clientId: 'kafkajs', brokers: [process.env.LEAT_BOOTSTRAP], logLevel: logLevel.NOTHING, retry: { retries: 4, initialRetryTime: 50 }
})
const codecs = { '': CompressionTypes.None, none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }

class NotOffered extends Error {}

const decode = text => text === null ? null : Buffer.from(text, 'base64')
const encode = data => data === null || data === undefined ? null : data.toString('base64')

// Headers are an object here; one that is there more than once is an array.
function headersOf (record) {
  const out = {}
  for (const { key, value } of record.headers ?? []) {
    const bytes = decode(value)
    out[key] = key in out ? [out[key], bytes].flat() : bytes
  }
  return out
}

const tell = (partition, message) => ({
  key: encode(message.key),
  value: encode(message.value),
  headers: Object.entries(message.headers ?? {}).flatMap(([key, values]) => [values].flat().map(value => ({ key, value: encode(value) }))),
  timestamp: Number(message.timestamp),
  partition,
  offset: Number(message.offset)
})

let adminClient
async function admin () {
  if (!adminClient) {
    adminClient = kafka.admin()
    await adminClient.connect()
  }
  return adminClient
}

async function produce (ask) {
  if (!(ask.codec in codecs)) throw new NotOffered(`${ask.codec} is a plugin of native code`)
  const producer = kafka.producer({
    allowAutoTopicCreation: true, idempotent: ask.idempotent, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner
  })
  await producer.connect()
  try {
    await producer.send({
      topic: ask.topic,
      acks: ask.acks === 'all' ? -1 : Number(ask.acks),
      compression: codecs[ask.codec],
      messages: ask.records.map(r => ({
        key: decode(r.key),
        value: decode(r.value),
        headers: headersOf(r),
        partition: ask.partition,
        ...(r.timestamp === 0 ? {} : { timestamp: String(r.timestamp) })
      }))
    })
  } finally {
    await producer.disconnect()
  }
}

const seen = new EventEmitter()
let readers = 0

// read is a group of its own: KafkaJS has no consumer without one.
async function read (ask) {
  const consumer = kafka.consumer({ groupId: `kafkajs-${process.pid}-${readers++}`, maxWaitTimeInMs: 200, maxBytesPerPartition: 4 << 20 })
  const records = []
  await consumer.connect()
  try {
    const offset = ask.at === 'time' ? (await listOffset(ask)).offset : ask.offset
    await consumer.subscribe({ topic: ask.topic, fromBeginning: ask.at === 'earliest' })
    const full = new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          if (partition !== ask.partition || records.length >= ask.count) return
          records.push(tell(partition, message))
          if (records.length >= ask.count) resolve()
        }
      }).catch(reject)
    })
    if (ask.at === 'offset' || ask.at === 'time') consumer.seek({ topic: ask.topic, partition: ask.partition, offset: String(offset) })
    await full
  } finally {
    await consumer.disconnect()
  }
  return { records }
}

async function listOffset (ask) {
  const client = await admin()
  const all = ask.at === 'time' ? await client.fetchTopicOffsetsByTimestamp(ask.topic, ask.offset) : await client.fetchTopicOffsets(ask.topic)
  const one = all.find(p => p.partition === ask.partition)
  return { offset: Number(ask.at === 'earliest' ? one.low : ask.at === 'latest' ? one.high : one.offset) }
}

// The group that this process is a member of.
let member, topic
let assigned = []
let arrived = []
let polled = []
let revoked = 0

async function join (ask) {
  if (ask.strategy === 'cooperative') throw new NotOffered('no cooperative assignor')
  if (ask.instance) throw new NotOffered('no static members')
  topic = ask.topic
  member = kafka.consumer({
    groupId: ask.group, sessionTimeout: 10_000, rebalanceTimeout: 10_000, heartbeatInterval: 200, maxWaitTimeInMs: 100
  })
  // What has not been polled is read again by whoever has the partition now.
  member.on(member.events.GROUP_JOIN, ({ payload }) => {
    revoked += assigned.length
    assigned = payload.memberAssignment[topic] ?? []
    arrived = []
  })
  await member.connect()
  await member.subscribe({ topic, fromBeginning: true })
  await member.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      arrived.push(tell(partition, message))
      seen.emit('record')
    }
  })
}

async function poll () {
  if (arrived.length === 0) await once(seen, 'record', { signal: AbortSignal.timeout(200) }).catch(() => {})
  polled = arrived
  arrived = []
  return { records: polled, assigned, revoked }
}

async function commit () {
  const next = new Map(polled.map(r => [r.partition, r.offset + 1]))
  await member.commitOffsets([...next].map(([partition, offset]) => ({ topic, partition, offset: String(offset) })))
}

async function leave () {
  await member?.disconnect()
  member = undefined
}

const entries = configs => Object.entries(configs ?? {}).map(([name, value]) => ({ name, value }))

const operations = {
  hello: async () => ({ version: JSON.parse(readFileSync(new URL('node_modules/kafkajs/package.json', import.meta.url))).version }),
  metadata: async () => {
    const client = await admin()
    const { topics } = await client.fetchTopicMetadata()
    const { brokers, clusterId } = await client.describeCluster()
    return { topics: Object.fromEntries(topics.map(t => [t.name, t.partitions.length])), nodes: brokers.length, cluster: clusterId }
  },
  produce,
  read,
  list_offset: listOffset,
  join,
  poll,
  commit,
  leave,
  create_topic: async ask => {
    const made = await (await admin()).createTopics({
      topics: [{ topic: ask.topic, numPartitions: ask.partitions, replicationFactor: 1, configEntries: entries(ask.configs) }]
    })
    if (!made) throw new Error('TOPIC_ALREADY_EXISTS, which KafkaJS tells by the answer false')
  },
  delete_topic: async ask => (await admin()).deleteTopics({ topics: [ask.topic] }),
  create_partitions: async ask => (await admin()).createPartitions({ topicPartitions: [{ topic: ask.topic, count: ask.partitions }] }),
  describe_configs: async ask => {
    const { resources } = await (await admin()).describeConfigs({ includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: ask.topic }] })
    return { configs: Object.fromEntries(resources[0].configEntries.map(e => [e.configName, e.configValue])) }
  },
  replace_configs: async ask => (await admin()).alterConfigs({
    resources: [{ type: ConfigResourceTypes.TOPIC, name: ask.topic, configEntries: entries(ask.configs) }]
  }),
  delete_records: async ask => {
    const client = await admin()
    await client.fetchTopicOffsets(ask.topic) // it looks for leaders only in what it knows already
    await client.deleteTopicRecords({ topic: ask.topic, partitions: [{ partition: ask.partition, offset: String(ask.offset) }] })
  },
  list_groups: async () => ({ groups: (await (await admin()).listGroups()).groups.map(g => g.groupId) }),
  describe_group: async ask => {
    const { groups: [group] } = await (await admin()).describeGroups([ask.group])
    return { state: group.state, members: group.members.length }
  },
  delete_group: async ask => (await admin()).deleteGroups([ask.group]),
  commit_offsets: async ask => (await admin()).setOffsets({
    groupId: ask.group, topic: ask.topic, partitions: Object.entries(ask.offsets).map(([p, offset]) => ({ partition: Number(p), offset: String(offset) }))
  }),
  committed: async ask => {
    const [{ partitions }] = await (await admin()).fetchOffsets({ groupId: ask.group, topics: [ask.topic] })
    return { offsets: Object.fromEntries(partitions.map(p => [p.partition, Number(p.offset)])) }
  }
}

// words is everything that an error of KafkaJS says, also those within it.
const words = error => [
  error.name, error.type, error.message, ...[
    error.cause, error.originalError, ...(error.errors ?? []), ...(error.groups ?? []).map(g => g.error), ...(error.partitions ?? []).map(p => p.error)
  ].filter(Boolean).map(words)
].filter(Boolean).join(': ')

async function answer (ask) {
  const operation = operations[ask.op]
  if (!operation) return { not_offered: 'no such call' }
  try {
    const result = await operation(ask)
    return result !== null && typeof result === 'object' && !Array.isArray(result) ? result : {}
  } catch (error) {
    return error instanceof NotOffered || error.name === 'KafkaJSNotImplemented' ? { not_offered: error.message } : { error: words(error) }
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + '\n')
}
await leave()
await adminClient?.disconnect()
