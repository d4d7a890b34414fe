// Drives the example page web/examples/tail.html in Chromium and proves what a user of it relies on. It is run by
// browser_test.go, which owns the server:
//
//   node tail.mjs BROWSER USER_DATA_DIR SERVER_ORIGIN FOREIGN_ORIGIN ALLOWED_ORIGIN
//
// Where the server itself must be touched, this script writes an order to stdout (`kill`, `freeze`, `stop`, `start`,
// `trim TOPIC PARTITION OFFSET`) and reads a line from stdin when it is carried out. Words go to stderr; the exit code
// is 0 if all is as it should be.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createInterface } from 'node:readline'
import { chromium } from 'playwright-core'

const [executablePath, userDataDir, server, foreign, allowed] = process.argv.slice(2)
const topic = 'browser'
const partitions = 3
const patience = 30000
const window = { bytes: 1 << 20, records: 500 } // the page's credit

const replies = createInterface({ input: process.stdin })[Symbol.asyncIterator]()

/** Has browser_test.go do something to the server. */
async function order (command) {
  process.stdout.write(`${command}\n`)
  const { value } = await replies.next()
  assert.equal(value, 'done', `${command}: ${value}`)
}

/** Asks the HTTP API; retry means: also until a server is there. */
async function api (method, path, body, retry = false) {
  const deadline = Date.now() + patience
  for (;;) {
    try {
      const type = method === 'GET' ? {} : { 'Content-Type': 'application/json' }
      const response = await fetch(server + path, { method, headers: type, body: body && JSON.stringify(body) })
      const text = await response.text()
      assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`)
      return text && JSON.parse(text)
    } catch (error) {
      if (!retry || error instanceof assert.AssertionError || Date.now() > deadline) throw error
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
}

const produce = (records, to = topic) => api('POST', `/v1/topics/${to}/records`, { records })
const text = (n, from = 0) => Array.from({ length: n }, (_, i) => ({ key: `k${(from + i) % 50}`, value_str: `record ${from + i} <b>é</b>` }))

/** What the log holds of one partition, by the HTTP API: lines as `shown` gives them. */
async function logged (partition) {
  const lines = []
  let next = 0
  for (;;) {
    const page = await api('GET', `/v1/topics/${topic}/partitions/${partition}/records?offset=${next}&as=string&max_records=10000`)
    lines.push(...page.records.map((r) => `${r.offset} ${r.key_str ?? 'null'} ${r.value_str}`))
    if (page.next_offset >= page.high_watermark) return lines
    next = page.next_offset
  }
}

/** Runs in the page before its scripts: keeps every row that was ever put into the table, oldest first. */
function watchRows () {
  globalThis.rowsSeen = []
  document.addEventListener('DOMContentLoaded', () => {
    const rows = document.getElementById('rows')
    if (!rows) return // a page of another origin
    new MutationObserver((changes) => {
      for (const { addedNodes } of changes) globalThis.rowsSeen.push(...Array.from(addedNodes, (tr) => Array.from(tr.cells, (td) => td.textContent)).reverse())
    }).observe(rows, { childList: true })
  })
}

/** What the page has shown of one partition since it was loaded. */
async function shown (page, partition) {
  const rows = await page.evaluate(() => globalThis.rowsSeen)
  return rows.filter((row) => row.length === 5 && row[0] === String(partition)).map(([, offset, , key, value]) => `${offset} ${key} ${value}`)
}

const notices = (page) => page.evaluate(() => globalThis.rowsSeen.filter((row) => row.length === 1).map(([words]) => words))

/** Waits until ok(…) holds in the page. */
const until = (page, what, ok, arg) => page.waitForFunction(ok, arg, { timeout: patience, polling: 20 }).catch((error) => {
  throw new Error(`${what}: ${error.message}`)
})

const status = (page) => page.locator('#status').textContent()
const visible = (page) => page.evaluate(() => document.body.innerText)
const notConnected = (page) => until(page, 'the page says that it is not connected', () => document.getElementById('status').textContent.startsWith('Not connected: '))
const receipt = (page, words) => until(page, words, (words) => document.getElementById('receipt').textContent === words, words)
const listening = (page) => until(page, 'the page listens', () => document.getElementById('status').textContent === 'Listening')
const rowsSeen = (page, n) => until(page, `${n} rows`, (n) => globalThis.rowsSeen.filter((row) => row.length === 5).length >= n, n)

/** Every record of the log was shown once, in order. */
async function compare (page) {
  let total = 0
  const all = []
  for (let p = 0; p < partitions; p++) all.push(await logged(p))
  for (const lines of all) total += lines.length
  await rowsSeen(page, total)
  for (let p = 0; p < partitions; p++) assert.deepEqual(await shown(page, p), all[p], `partition ${p}`)
  return total
}

const steps = {
  async 'every record once, in order, produced by HTTP and by the form' (page) {
    await api('POST', '/v1/topics', { name: topic, partitions })
    await produce(text(400))
    await page.goto(`${server}/examples/tail.html?topic=${topic}&from=earliest`)
    await listening(page)
    for (let i = 400; i < 800; i += 40) await produce(text(40, i))
    await page.fill('#key', 'from the form')
    await page.fill('#value', '<img src=x onerror=alert(1)>')
    await page.click('#produce button')
    await until(page, 'the receipt', () => document.getElementById('receipt').textContent.startsWith('Stored in partition '))
    await page.fill('#key', '')
    await page.fill('#value', 'without a key')
    await page.press('#value', 'Enter')
    await rowsSeen(page, 802)
    assert.equal(await compare(page), 802)
    assert.equal(await page.locator('#rows img, #rows b').count(), 0, 'a record was read as HTML')
    assert.deepEqual(await notices(page), [])
  },

  async 'a server that is killed while records come, and one that is stopped' (page) {
    for (const [i, end] of ['kill', 'stop'].entries()) {
      const first = 1000 + 1000 * i
      const before = await compare(page)
      const producing = (async () => {
        for (let n = first; n < first + 400; n += 10) await produce(text(10, n))
      })().catch(() => 'cut') // by the end of the server
      await rowsSeen(page, before + 100)
      await order(end)
      await producing
      await notConnected(page)
      await page.fill('#value', 'meanwhile')
      await page.click('#produce button')
      await receipt(page, 'Not connected')
      await order('start')
      await listening(page)
      await produce(text(30, first + 500))
      await compare(page)
      assert.deepEqual(await notices(page), [])
    }
  },

  async 'a server that is killed before it answers the form' (page) {
    await order('freeze')
    await page.fill('#value', 'unanswered')
    await page.click('#produce button')
    await order('kill')
    await receipt(page, 'Nobody knows whether that was stored')
    await order('start')
    await listening(page)
    await produce(text(30, 3600))
    await compare(page)
    assert.deepEqual(await notices(page), [])
  },

  async 'a tail that was left does not come back' (page) {
    for (const name of ['aaa', 'bbb']) await api('POST', '/v1/topics', { name, partitions: 1 })
    for (const connected of [true, false]) {
      const other = await page.context().newPage()
      await other.clock.install()
      const sockets = new Set()
      other.on('websocket', (socket) => {
        sockets.add(socket)
        socket.on('close', () => sockets.delete(socket))
      })
      await other.goto(`${server}/examples/tail.html?topic=aaa&from=latest`)
      await listening(other)
      if (!connected) {
        await order('kill')
        await notConnected(other)
      }
      await other.selectOption('#topic', 'bbb')
      if (!connected) await order('start')
      for (let i = 0; i < 2; i++) { // each is longer than a silence and longer than what is waited before a reconnect
        await listening(other)
        await other.clock.fastForward(300000)
        await listening(other)
      }
      await produce([{ value_str: 'left' }], 'aaa')
      await produce([{ value_str: 'chosen' }], 'bbb')
      await until(other, 'the record', () => globalThis.rowsSeen.some((row) => row[4] === 'chosen'))
      const deadline = Date.now() + patience
      while (sockets.size !== 1) {
        assert.ok(Date.now() < deadline, `${sockets.size} sockets are open`)
        await new Promise((resolve) => setTimeout(resolve, 20))
      }
      const values = await other.evaluate(() => globalThis.rowsSeen.map((row) => row[4]))
      assert.ok(!values.includes('left'), `rows ${values}`)
      await other.close()
    }
    await listening(page)
  },

  async 'a pause holds one window, not the rest, and loses nothing' (page, frames) {
    await page.click('#pause')
    const before = await page.evaluate(() => globalThis.rowsSeen.length)
    frames.records = 0
    for (let i = 0; i < 4; i++) await produce(text(1000, 4000 + 1000 * i))
    await until(page, 'the button', () => document.getElementById('pause').getAttribute('aria-pressed') === 'true')
    assert.match(await status(page), /^Paused/)
    await frames.reach(window.records)
    assert.equal(await page.evaluate(() => globalThis.rowsSeen.length), before, 'rows while paused')
    assert.ok(frames.records <= window.records, `${frames.records} records came while paused`)
    await page.click('#pause')
    await compare(page)
    assert.ok(await page.locator('#rows tr').count() <= 1000, 'the table is bounded')
  },

  async 'records that are deleted while the page is paused are told' (page, frames) {
    await page.click('#pause')
    frames.records = 0
    await produce(text(3000, 10000).map(({ value_str }) => ({ value_str, partition: 1 })))
    await frames.reach(window.records)
    const { high_watermark: end } = await api('GET', `/v1/topics/${topic}/partitions/1`)
    const last = (await shown(page, 1)).length
    await order(`trim ${topic} 1 ${end - 10}`)
    await page.click('#pause')
    await until(page, 'the notice', () => globalThis.rowsSeen.some((row) => row.length === 1))
    await until(page, 'the last record', (end) => globalThis.rowsSeen.some((row) => row[0] === '1' && row[1] === String(end)), end - 1)
    const offsets = (await shown(page, 1)).slice(last).map((line) => Number(line.split(' ')[0]))
    const hole = offsets.indexOf(end - 10)
    assert.deepEqual(offsets.slice(hole), Array.from({ length: 10 }, (_, i) => end - 10 + i))
    assert.deepEqual(offsets.slice(0, hole), Array.from({ length: hole }, (_, i) => last + i))
    const words = await notices(page)
    assert.equal(words.length, 1)
    assert.match(words[0], new RegExp(`^Partition 1: offsets ${last + hole} to ${end - 11} are gone`))
  },

  async 'a topic that is deleted and made again is read from its beginning' (page, frames) {
    await page.click('#pause')
    frames.records = 0
    await produce(text(20, 80000))
    await frames.reach(20)
    await api('DELETE', `/v1/topics/${topic}`)
    await page.click('#pause') // and the page gives credit to a subscription that is gone
    await until(page, 'the notice', () => globalThis.rowsSeen.some((row) => row.length === 1 && row[0].includes('was deleted')))
    await until(page, 'the problem', () => document.getElementById('problem-title').textContent.startsWith('There is no topic '))
    assert.equal((await notices(page)).at(-1), `The topic ${topic} was deleted.`)
    await api('POST', '/v1/topics', { name: topic, partitions: 1 })
    await produce(text(5, 90000))
    await page.evaluate(() => { globalThis.rowsSeen.length = 0 })
    await page.click('#retry')
    await rowsSeen(page, 5)
    assert.deepEqual(await shown(page, 0), await logged(0))

    await page.click('#pause')
    await api('DELETE', `/v1/topics/${topic}`)
    await api('POST', '/v1/topics', { name: topic, partitions: 1 })
    await produce(text(7, 90000))
    await page.evaluate(() => { globalThis.rowsSeen.length = 0 })
    await page.click('#pause')
    await rowsSeen(page, 7)
    assert.deepEqual(await shown(page, 0), await logged(0))
    assert.deepEqual(await notices(page), [`The topic ${topic} was deleted.`, `A new topic ${topic} is read from its beginning.`])
  },

  async 'a topic is shown from its last records on, and the page says so' (page) {
    await page.goto(`${server}/examples/tail.html`)
    await rowsSeen(page, 2) // of aaa, the first of all
    assert.match(await page.locator('#progress').textContent(), /^2 records from the last 100 of each partition; /)
    await page.selectOption('#from', 'latest')
    await listening(page)
    await produce([{ value_str: 'one more' }], 'aaa')
    await until(page, 'the record is counted', () => document.getElementById('progress').textContent.startsWith('1 record from now on; '))
  },

  async 'headers are shown, and a long value when it is wanted' (page) {
    const long = `${'x'.repeat(4095)}\u{1f600}${'y'.repeat(100000)}`
    await page.goto(`${server}/examples/tail.html?topic=aaa&from=latest`)
    await listening(page)
    await produce([{ value_str: long, headers: [{ name: 'trace', value: '<b>7</b>' }, { name: 'empty', value: null }] }], 'aaa')
    await rowsSeen(page, 1)
    const value = page.locator('#rows td.value')
    const headers = 'trace: <b>7</b> · empty: null'
    assert.equal(await value.textContent(), `${'x'.repeat(4095)}…Show all 104,099 bytes${headers}`)
    await value.locator('button').click()
    assert.equal(await value.textContent(), long + headers)
  },

  async 'a form that is not filled in stores nothing' (page) {
    const { high_watermark: end } = await api('GET', '/v1/topics/aaa/partitions/0')
    await page.fill('#value', '')
    await page.click('#produce button')
    await page.press('#key', 'Enter')
    assert.ok(await page.locator('#value').evaluate((input) => input === document.activeElement), 'the browser asks for a value')
    await page.fill('#value', 'filled in')
    await page.press('#value', 'Enter')
    await receipt(page, `Stored in partition 0 at offset ${end}`)
  },

  async 'what cannot be shown is told once, with what is wanted' (page) {
    await page.goto(`${server}/examples/tail.html?topic=nope`)
    await until(page, 'the problem', () => !document.getElementById('problem').hidden)
    const words = await visible(page)
    assert.match(words, /There is no topic nope/)
    assert.doesNotMatch(words, /[Uu]nknown|Nothing to show|Listening/)
    for (const from of ['rubbish', 'tail:x', 'ts:x', '17']) {
      await page.goto(`${server}/examples/tail.html?topic=aaa&from=${from}`)
      await until(page, 'the problem', () => !document.getElementById('problem').hidden)
      assert.match(await page.locator('#problem').textContent(), new RegExp(`${from} is no place to begin.*earliest, latest, tail:N .*ts:TIME .*cursor`, 's'))
    }
  },

  async 'the commands of the first page' (page) {
    await page.goto(server)
    const commands = await page.locator('pre').textContent()
    const out = execFileSync('sh', ['-ec', commands], { env: { ...process.env, LEAT: server }, stdio: ['ignore', 'pipe', 'ignore'] }).toString()
    for (const value of ['first', 'second']) assert.ok(out.includes(`"value_str":"${value}"`), out)
  },

  async 'the page that polls shows the same' (page) {
    await page.goto(`${server}/examples/longpoll.html?topic=${topic}&partition=0&from=earliest`)
    const shown = (n) => until(page, `${n} rows`, (n) => globalThis.rowsSeen.length >= n, n)
    await shown((await logged(0)).length)
    await produce(text(1, 90005))
    const lines = await logged(0)
    await shown(lines.length)
    const rows = await page.evaluate(() => globalThis.rowsSeen)
    assert.deepEqual(rows.map(([offset, , key, value]) => `${offset} ${key} ${value}`), lines)
    await page.goBack()
  },

  async 'the page fits a telephone' (page) {
    await page.setViewportSize({ width: 360, height: 700 })
    await page.goto(`${server}/examples/tail.html?topic=aaa`)
    await listening(page)
    const { height } = await page.locator('header').boundingBox()
    assert.ok(height < 700 / 3, `the controls are ${height} high`)
    assert.ok(!await page.isVisible('#value'), 'the form is folded')
    await page.click('summary')
    assert.ok(await page.isVisible('#value'), 'the form can be unfolded')
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'the page is wider than the screen')
  },

  async 'a page of another origin opens no socket, unless it is allowed' (page) {
    const opens = async (origin) => {
      await page.goto(origin)
      return page.evaluate((url) => new Promise((resolve) => {
        const socket = new WebSocket(url, 'leat.v1.json')
        socket.onmessage = (event) => { resolve(JSON.parse(event.data).type); socket.close() }
        socket.onclose = (event) => resolve(event.code)
      }), `${server.replace('http', 'ws')}/v1/ws`)
    }
    assert.equal(await opens(foreign), 1006, 'a page of a foreign origin')
    assert.equal(await opens(allowed), 'ready', 'a page of an allowed origin')
    assert.equal(await opens(`${server}/examples/tail.html`), 'ready', 'a page of the server itself')
  },
}

/** Counts the records in the data frames that reach the page. */
function countRecords (page) {
  const frames = { records: 0, at: null }
  frames.reach = (n) => new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${frames.records} of ${n} records came`)), patience)
    frames.at = () => {
      if (frames.records < n) return
      clearTimeout(timer)
      frames.at = null
      resolve()
    }
    frames.at()
  })
  page.on('websocket', (socket) => socket.on('framereceived', ({ payload }) => {
    const message = JSON.parse(payload)
    if (message.type !== 'data') return
    frames.records += message.records.length
    frames.at?.()
  }))
  return frames
}

const context = await chromium.launchPersistentContext(userDataDir, {
  executablePath,
  headless: true,
  args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
})
try {
  const [page] = context.pages()
  await context.addInitScript(watchRows)
  const frames = countRecords(page)
  const complaints = []
  page.on('pageerror', (error) => complaints.push(error.message))
  // A browser says in the console that a connection failed, and here some must.
  page.on('console', (message) => message.type() === 'error' && !/WebSocket connection to/.test(message.text()) && complaints.push(message.text()))
  for (const [name, step] of Object.entries(steps)) {
    process.stderr.write(`${name}\n`)
    await step(page, frames)
    assert.deepEqual(complaints, [], 'errors in the page')
  }
} finally {
  await context.close()
}
process.exit(0) // stdin is still open
