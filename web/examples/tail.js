// Tails a topic over one WebSocket. The protocol, leat.v1.json, is JSON text in both directions:
//
//   → {"type":"subscribe","id":1,"sub":"tail","topic":"orders","from":"earliest","credit":{"bytes":1048576,"records":500}}
//   ← {"type":"subscribed","id":1,"sub":"tail","topic_id":"…","positions":{"0":0}}
//   ← {"type":"data","sub":"tail","p":0,"prev":0,"next":2,"records":[…]}
//   → {"type":"credit","sub":"tail","bytes":210,"records":2}
//
// Where a data frame ends (`next`), the next one of that partition begins (`prev`). The page remembers `next` of what it
// has shown, and after a lost connection subscribes with that: nothing is lost and nothing comes twice. It gives credit
// back only for what it has shown, so a paused or hidden page holds one window of records and the rest waits in the log.
import { byId, cell, count, field, options, time, topicNames } from './page.js'

const credit = { bytes: 1 << 20, records: 500 }
const keepRows = 1000
const longestBackoff = 30000
const longestSilence = 30000 // until the server has said how often it says something
const encoder = new TextEncoder()

class Tail {
  /** view shows: records, a notice among them, the state, progress, what was refused, and receipts. */
  constructor (topic, from, view) {
    Object.assign(this, { topic, from, view })
    this.positions = {} // partition → offset of the first record that is not shown
    this.waiting = [] // messages that came and are not shown
    this.failures = 0
    this.silence = longestSilence
    this.connect()
  }

  connect () {
    this.socket = new WebSocket(`${location.origin.replace(/^http/, 'ws')}/v1/ws`, 'leat.v1.json')
    this.socket.onopen = () => this.subscribe()
    this.socket.onmessage = (event) => this.receive(JSON.parse(event.data), event.data)
    this.socket.onclose = (event) => this.lost(event.reason || 'the connection is lost', event.code)
    this.expectMore()
  }

  subscribe () {
    const from = Object.keys(this.positions).length > 0 ? this.positions : this.from
    this.send({ type: 'subscribe', id: 1, sub: 'tail', topic: this.topic, topic_id: this.topicId, partitions: 'all', from, as: 'string', credit })
  }

  send (message) { this.socket.send(JSON.stringify(message)) }

  receive (message, text) {
    this.expectMore()
    switch (message.type) {
      case 'ready':
        this.silence = 3 * message.hb_ms
        break
      case 'subscribed':
        this.failures = 0
        if (this.deleted) this.view.notice(`A new topic ${this.topic} is read from its beginning.`)
        this.deleted = false
        this.topicId = message.topic_id
        this.positions = { ...message.positions, ...this.positions }
        this.listening = true
        this.say()
        this.view.progress(this.positions)
        break
      case 'data':
        message.size = encoder.encode(text.slice(text.indexOf('[') + 1, -2)).length // credit counts the bytes of records
        // falls through
      case 'gap':
      case 'stream_reset':
        this.waiting.push(message)
        this.show()
        break
      case 'produced':
        this.answered(message)
        break
      case 'error':
        if (message.id === 'form') this.answered(message)
        // Credit for a subscription that has just ended crosses the message that says so.
        else if (message.problem.code !== 'unknown_subscription') this.refused(message.problem)
    }
  }

  say () {
    if (this.listening) this.view.state(this.paused ? 'Paused: what comes now waits in the log' : 'Listening')
  }

  /** Shows what waits when the browser paints next. A hidden page does not paint, so it stops as a paused one does. */
  show () {
    cancelAnimationFrame(this.painting)
    if (!this.paused) this.painting = requestAnimationFrame(() => this.waiting.splice(0).forEach((message) => this.take(message)))
  }

  take (message) {
    const { type, p } = message
    if (type === 'stream_reset') return this.reset()
    if (type === 'gap') {
      this.view.notice(`Partition ${p}: offsets ${message.from} to ${message.to - 1} are gone (${message.reason}).`)
      this.positions[p] = message.to
      return
    }
    const at = this.positions[p] ?? message.prev
    if (message.prev > at) this.view.notice(`Partition ${p}: nothing came for offsets ${at} to ${message.prev - 1}.`)
    if (message.next > at) this.view.records(p, message.records.filter((record) => record.offset >= at))
    this.positions[p] = Math.max(at, message.next)
    this.send({ type: 'credit', sub: 'tail', bytes: message.size, records: message.records.length })
    this.view.progress(this.positions)
  }

  /** The topic was deleted, perhaps made again: positions in the old one mean nothing in the new one. */
  reset () {
    this.view.notice(`The topic ${this.topic} was deleted.`)
    this.deleted = true
    this.positions = {}
    this.topicId = undefined
    this.from = 'earliest'
    this.subscribe()
  }

  /** A server says something every hb_ms. One that does not is gone, even if the network has not noticed. */
  expectMore () {
    clearTimeout(this.silent)
    this.silent = setTimeout(() => this.lost('the server is silent'), this.silence)
  }

  /** Tries again after a random time that grows (full jitter), so that a thousand pages do not come back at once. */
  lost (reason, code) {
    this.close()
    if (code >= 4500 && code < 5000) return this.view.refused({ title: 'The server closed the connection', detail: reason })
    const wait = Math.random() * Math.min(longestBackoff, 500 * 2 ** this.failures++)
    this.again = setTimeout(() => this.connect(), wait)
    this.view.state(`Not connected: ${reason}. Trying again in ${(wait / 1000).toFixed(1)} s.`)
  }

  refused (problem) {
    if (problem.retriable) return this.lost(problem.detail || problem.title)
    this.close()
    this.view.refused(problem)
  }

  /** What was received and not shown is dropped: it is past the positions, so it will come again. */
  close () {
    if (this.unanswered) this.answered({ problem: { title: 'Nobody knows whether that was stored' } })
    clearTimeout(this.silent)
    clearTimeout(this.again)
    cancelAnimationFrame(this.painting)
    this.waiting = []
    this.listening = false
    this.socket.onopen = this.socket.onmessage = this.socket.onclose = null
    this.socket.close()
  }

  pause (paused) {
    this.paused = paused
    this.say()
    this.show()
  }

  produce (key, value) {
    if (this.socket.readyState !== WebSocket.OPEN) return false
    this.send({ type: 'produce', id: 'form', topic: this.topic, records: [{ key: key || null, value_str: value }] })
    this.unanswered = true
    return true
  }

  answered (message) {
    this.unanswered = false
    this.view.receipt(message)
  }
}

const ui = byId()
let tail = null
let seen = 0

const view = {
  records (partition, records) {
    if (records.length === 0) return
    seen += records.length
    const fresh = document.createDocumentFragment()
    for (const record of records) {
      const tr = document.createElement('tr')
      tr.append(cell(partition, 'partition'), cell(record.offset, 'offset'), time(record), field(record, 'key'), field(record, 'value'))
      fresh.prepend(tr)
    }
    prepend(fresh)
  },
  notice (text) {
    const tr = document.createElement('tr')
    tr.className = 'notice'
    tr.append(cell(text, 'value'))
    tr.firstChild.colSpan = 5
    prepend(tr)
  },
  state (text) { ui.status.textContent = text },
  progress (positions) {
    const next = Object.entries(positions).map(([partition, offset]) => `${partition}:${offset}`)
    ui.progress.textContent = `${count(seen, 'record')} from ${ui.from.selectedOptions[0].text}; ${next.length > 16 ? `${next.length} partitions` : `next offsets ${next.join(' ')}`}`
  },
  refused (problem) {
    ui.problem.hidden = false
    ui.empty.hidden = true
    const [title, detail] = explain(problem)
    ui['problem-title'].textContent = title
    ui['problem-detail'].textContent = detail
    view.state('Not listening')
  },
  receipt ({ problem, receipts }) {
    ui.receipt.textContent = problem ? problem.detail ?? problem.title : `Stored in partition ${receipts[0].partition} at offset ${receipts[0].offset}`
  },
}

/** What was refused, in words for the one who looks: said once. */
function explain ({ code, title, detail, message, parameter }) {
  if (code === 'unknown_topic') return [`There is no topic ${ui.topic.value}`, 'Choose another, or try again when it is there.']
  if (code === 'bad_cursor' || parameter === 'from') {
    return [`${ui.from.value} is no place to begin`, 'from wants earliest, latest, tail:N (the last N of each partition), ts:TIME (milliseconds, or as in RFC 3339), or a cursor.']
  }
  return [title ?? 'No answer from the server', `${detail ?? message}${code ? ` (${code})` : ''}`]
}

function prepend (rows) {
  ui.rows.prepend(rows)
  while (ui.rows.childElementCount > keepRows) ui.rows.lastElementChild.remove()
  ui.empty.hidden = true
}

function setPaused (paused) {
  tail.pause(paused)
  ui.pause.setAttribute('aria-pressed', String(paused))
  ui.pause.textContent = paused ? 'Resume' : 'Pause'
}

function clear () {
  ui.rows.replaceChildren()
  ui.empty.hidden = false
}

/** Begins anew with what is chosen. */
function begin () {
  ui.receipt.textContent = ui.progress.textContent = ''
  tail?.close()
  clear()
  ui.problem.hidden = true
  seen = 0
  const topic = ui.topic.value
  history.replaceState(null, '', `?${new URLSearchParams({ topic, from: ui.from.value })}`)
  document.title = `${topic} · Leat`
  view.state('Connecting')
  tail = new Tail(topic, ui.from.value, view)
  setPaused(false)
}

/** Fills the choosers from the server and the address bar, then listens. */
async function start () {
  ui.problem.hidden = true
  const asked = new URLSearchParams(location.search)
  const names = await topicNames()
  const topic = asked.get('topic') ?? names[0]
  if (topic === undefined) {
    return view.state('This server has no topics yet. Reload when there is one.')
  }
  options(ui.topic, names.includes(topic) ? names : [topic, ...names], topic)
  const from = asked.get('from') ?? ui.from.value
  if (!Array.from(ui.from.options).some((option) => option.value === from)) ui.from.add(new Option(from, from))
  ui.from.value = from
  begin()
}

const wide = matchMedia('(min-width: 40rem)') // on a telephone the form is folded until it is wanted
wide.onchange = () => { ui.writing.open = wide.matches }
wide.onchange()
ui.choose.addEventListener('change', begin)
ui.choose.addEventListener('submit', (event) => event.preventDefault())
ui.pause.addEventListener('click', () => tail && setPaused(!tail.paused))
ui.clear.addEventListener('click', clear)
ui.retry.addEventListener('click', () => start().catch(view.refused))
ui.produce.addEventListener('submit', (event) => {
  event.preventDefault()
  if (tail?.produce(ui.key.value, ui.value.value)) ui.value.value = ''
  else ui.receipt.textContent = 'Not connected'
})
start().catch(view.refused)
