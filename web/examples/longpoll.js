// Tails one partition by long poll. The whole protocol is one request in a loop:
//
//   GET /v1/topics/{topic}/partitions/{partition}/records?from=tail:100
//   GET /v1/topics/{topic}/partitions/{partition}/records?offset={next_offset}&wait=25     and so on
//
// The server answers as soon as there is a record, or with an empty list when `wait` seconds are over. The position is
// next_offset and nothing else, so a pause, a lost connection or a restart of the server neither loses nor repeats.
import { ask, byId, cell, count, field, options, Refused, time, topicNames } from './page.js'

const waitSeconds = 25
const keepRows = 1000
const longestBackoff = 15000

const ui = byId()

/** What is being tailed: {topic, partition, from, next, seen, paused, abort}; null before the first choice. */
let tail = null

function recordsPath (t) {
  const query = new URLSearchParams({ max_records: keepRows, as: 'string' })
  if (t.next === null) {
    query.set('from', t.from) // no wait: until this is answered there is no position, and a pause would lose records
  } else {
    query.set('offset', t.next)
    query.set('wait', waitSeconds)
  }
  return `/v1/topics/${encodeURIComponent(t.topic)}/partitions/${t.partition}/records?${query}`
}

/** Polls until t is paused or another choice is made. */
async function run (t) {
  t.abort = new AbortController()
  const { signal } = t.abort
  let backoff = 500
  while (!signal.aborted) {
    try {
      const page = await ask(recordsPath(t), signal)
      if (signal.aborted) return
      hideProblem()
      t.next = page.next_offset
      t.seen += page.records.length
      show(page.records)
      say(`Listening to ${t.topic}, partition ${t.partition}: ${count(t.seen, 'record')}, next offset ${t.next}`)
      backoff = 500
    } catch (error) {
      if (signal.aborted) return
      const again = !(error instanceof Refused) || error.retriable
      showProblem(error, again ? `Trying again in ${backoff / 1000} s.` : 'Choose another topic, or try again.')
      if (!again) return
      await pauseFor(backoff, signal)
      backoff = Math.min(backoff * 2, longestBackoff)
    }
  }
}

function pauseFor (ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms)
    signal.addEventListener('abort', () => { clearTimeout(timer); resolve() }, { once: true })
  })
}

function show (records) {
  if (records.length === 0) return
  const fresh = document.createDocumentFragment()
  for (const record of records.slice(-keepRows)) fresh.prepend(row(record))
  ui.rows.prepend(fresh)
  while (ui.rows.childElementCount > keepRows) ui.rows.lastElementChild.remove()
  ui.empty.hidden = true
}

/** A record as a table row. */
function row (record) {
  const tr = document.createElement('tr')
  tr.append(cell(record.offset, 'offset'), time(record), field(record, 'key'), field(record, 'value'))
  return tr
}

function say (text) { ui.status.textContent = text }

function hideProblem () { ui.problem.hidden = true }

function showProblem (error, next) {
  ui.problem.hidden = false
  ui['problem-title'].textContent = error instanceof Refused ? error.title : 'No answer from the server'
  ui['problem-detail'].textContent = error.code ? `${error.message} (${error.code})` : error.message
  ui['problem-next'].textContent = next
  say('Not listening')
}

/** Stops what is running and begins anew with what is chosen. */
function begin (from) {
  tail?.abort?.abort()
  hideProblem()
  clear()
  if (!ui.topic.value || ui.partition.value === '') return
  const offset = /^\d+$/.test(from) ? Number(from) : null
  tail = { topic: ui.topic.value, partition: Number(ui.partition.value), from, next: offset, seen: 0, paused: false, abort: null }
  setPaused(false)
  history.replaceState(null, '', linkTo(from))
  document.title = `${tail.topic}/${tail.partition} · Leat`
  say(`Listening to ${tail.topic}, partition ${tail.partition}`)
  run(tail)
}

function linkTo (from) {
  return `${location.pathname}?${new URLSearchParams({ topic: tail.topic, partition: tail.partition, from })}`
}

function clear () {
  ui.rows.replaceChildren()
  ui.empty.hidden = false
}

function setPaused (paused) {
  tail.paused = paused
  ui.pause.setAttribute('aria-pressed', String(paused))
  ui.pause.textContent = paused ? 'Resume' : 'Pause'
}

function togglePause () {
  if (!tail) return
  setPaused(!tail.paused)
  if (tail.paused) {
    tail.abort.abort()
    say(`Paused before offset ${tail.next ?? tail.from}; nothing is lost meanwhile`)
  } else {
    run(tail)
  }
}

/** Copies a link that begins with the oldest record on the page. */
async function copyLink () {
  if (!tail) return
  const oldest = ui.rows.lastElementChild?.firstElementChild.textContent
  const link = new URL(linkTo(oldest ?? String(tail.next ?? tail.from)), location.href).href
  history.replaceState(null, '', link)
  try {
    await navigator.clipboard.writeText(link)
    say('Link copied')
  } catch {
    say('The link is in the address bar')
  }
}

async function loadPartitions (chosen) {
  const topic = await ask(`/v1/topics/${encodeURIComponent(ui.topic.value)}`)
  options(ui.partition, Array.from({ length: topic.partitions }, (_, i) => String(i)), chosen)
}

/** Fills the choosers from the server and the address bar, then listens. */
async function start () {
  const asked = new URLSearchParams(location.search)
  try {
    const names = await topicNames()
    options(ui.topic, names, asked.get('topic'))
    if (names.length === 0) {
      say('This server has no topics yet. Reload when there is one.')
      return
    }
    if (asked.has('topic') && !names.includes(asked.get('topic'))) {
      throw new Refused({ title: 'No such topic', detail: `This server has no topic ${asked.get('topic')}.`, retriable: false }, 404)
    }
    await loadPartitions(asked.get('partition'))
  } catch (error) {
    showProblem(error, 'Try again, or choose another topic.')
    return
  }
  const from = asked.get('from') ?? ui.from.value
  if (!Array.from(ui.from.options).some((option) => option.value === from)) ui.from.add(new Option(`offset ${from}`, from))
  ui.from.value = from
  begin(from)
}

ui.topic.addEventListener('change', async () => {
  try {
    await loadPartitions(null)
    begin(ui.from.value)
  } catch (error) {
    showProblem(error, 'Choose another topic, or try again.')
  }
})
ui.partition.addEventListener('change', () => begin(ui.from.value))
ui.from.addEventListener('change', () => begin(ui.from.value))
ui.pause.addEventListener('click', togglePause)
ui.clear.addEventListener('click', clear)
ui.link.addEventListener('click', copyLink)
ui.retry.addEventListener('click', () => { if (tail && !tail.paused) { tail.abort.abort(); hideProblem(); run(tail) } else start() })
ui.choose.addEventListener('submit', (event) => event.preventDefault())
start()
