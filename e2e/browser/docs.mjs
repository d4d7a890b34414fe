// Reads the documentation at /docs/ in Chromium as people do and proves what they rely on. It is run by browser_test.go:
//
//   node docs.mjs BROWSER USER_DATA_DIR SERVER_ORIGIN
//
// Words go to stderr; the exit code is 0 if all is as it should be.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { chromium } from 'playwright-core'

const [executablePath, userDataDir, server] = process.argv.slice(2)
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const looks = [
  { colorScheme: 'light', width: 1280, height: 800 },
  { colorScheme: 'dark', width: 360, height: 700 },
]

const context = await chromium.launchPersistentContext(userDataDir, {
  executablePath,
  headless: true,
  args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
})

const complaints = []
const [page] = context.pages()
page.on('pageerror', (error) => complaints.push(`${page.url()}: ${error.message}`))
page.on('console', (message) => ['error', 'warning'].includes(message.type()) && complaints.push(`${page.url()}: ${message.text()}`))
context.on('request', (request) => request.url().startsWith('data:') || new URL(request.url()).origin === server || complaints.push(`${page.url()} asks ${request.url()}`))
await context.addInitScript(() => document.addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`)))

/** Opens a page by its address alone, so that an address with another anchor is another visit. */
async function open (path) {
  const response = await page.goto(server + path)
  assert.equal(response?.status(), 200, path)
}

/** Opens a page in a look and proves what holds for each by itself; returns its ids and where it leads. */
async function visit (path, { colorScheme, width }) {
  await open(path)
  const { links, ids, wide } = await page.evaluate(() => ({
    links: Array.from(document.querySelectorAll('a[href]'), (a) => a.href),
    ids: Array.from(document.querySelectorAll('[id]'), (element) => element.id),
    wide: document.documentElement.scrollWidth - innerWidth,
  }))
  assert.ok(wide <= 0, `${path} is ${wide} wider than ${width}`)
  assert.equal(new Set(ids).size, ids.length, `${path} has an id twice: ${ids.filter((id, i) => ids.indexOf(id) !== i)}`)
  await page.evaluate(axe) // past the page's policy, which stays on
  const violations = await page.evaluate(async () => {
    // Long pages repeat one form a hundred times: what holds for the first sections holds for all.
    const { violations, passes } = await globalThis.axe.run({ exclude: ['main > section:nth-of-type(n+6)'] }, { resultTypes: ['violations'] })
    if (passes.length < 10) return [`axe applied only ${passes.length} rules`]
    return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 200)).join(' ; ')}`)
  })
  assert.deepEqual(violations, [], `${path}, ${colorScheme}, ${width} wide`)
  return { ids, links: links.map((href) => new URL(href)).filter(({ origin }) => origin === server) }
}

/** Every page that can be reached from the first, with the anchors that it has, and the links of all. */
async function walk (look) {
  const pages = new Map()
  const links = new Set()
  const queue = ['/docs/']
  for (const path of queue) {
    const { ids, links: out } = await visit(path, look)
    pages.set(path, new Set(ids))
    for (const { pathname, hash } of out) {
      links.add(pathname + hash)
      if (pathname.startsWith('/docs/') && !queue.includes(pathname)) queue.push(pathname)
    }
  }
  return { pages, links }
}

/** What can be reached by Tab is seen to be where the keyboard is: the first stops of a page, of which the first leads past the navigation. */
async function focusIsSeen (path) {
  await open(path)
  const stops = []
  for (let i = 0; i < 24; i++) {
    await page.keyboard.press('Tab')
    const stop = await page.evaluate(() => {
      const at = document.activeElement
      if (at === document.body) return null
      const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(at)
      const { left, right, top, bottom } = at.getBoundingClientRect()
      return {
        name: at.textContent.slice(0, 40), href: at.getAttribute('href'),
        ring: outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2 && !/, 0\)$/.test(outlineColor),
        inView: right > 0 && left < innerWidth && bottom > 0 && top < innerHeight,
      }
    })
    if (!stop) break
    assert.ok(stop.ring && stop.inView, `${path}: the focus on ${stop.name} is not seen: ${JSON.stringify(stop)}`)
    stops.push(stop)
  }
  assert.equal(stops[0].href, '#content', path)
  assert.ok(stops.length > 13, `${path}: Tab stops ${stops.length} times`)
}

try {
  let pages, links
  for (const look of looks) {
    await page.emulateMedia({ colorScheme: look.colorScheme })
    await page.setViewportSize({ width: look.width, height: look.height })
    const seen = await walk(look)
    assert.ok(seen.pages.size >= 12, `${seen.pages.size} pages`)
    ;({ pages, links } = seen)
    await focusIsSeen('/docs/limits')
  }

  for (const link of links) {
    const [path, anchor] = link.split('#')
    if (pages.has(path)) assert.ok(!anchor || pages.get(path).has(anchor), `nothing is at ${link}`)
    else assert.equal((await context.request.get(server + path)).status(), 200, `${link} leads nowhere`)
  }

  // Where each error's type leads: the heading of that name, in view.
  const { components } = await (await context.request.get(`${server}/openapi.json`)).json()
  const codes = components.schemas.ProblemCode.enum
  assert.ok(codes.length >= 90, `${codes.length} codes`)
  await Promise.all(codes.map(async (code) => {
    const response = await context.request.get(`${server}/problems/${code}`, { maxRedirects: 0 })
    assert.equal(response.headers().location, `/docs/problems#${code}`)
    assert.ok(pages.get('/docs/problems').has(code), `the page of problems has no ${code}`)
  }))
  for (const code of [codes[0], codes[codes.length >> 1], codes.at(-1)]) {
    await open(`/problems/${code}`)
    assert.equal(page.url(), `${server}/docs/problems#${code}`)
    assert.ok(await page.locator(`h2#${code}`).evaluate((heading) => heading.getBoundingClientRect().top >= 0 && heading.getBoundingClientRect().bottom <= innerHeight), `${code} is not in view`)
  }

  await open('/docs')
  assert.equal(page.url(), `${server}/docs/`, 'without the slash')
  await open('/')
  await page.click('a[href="/docs/"]')
  assert.equal(page.url(), `${server}/docs/`, 'from the first page')

  assert.deepEqual(complaints, [], 'errors in the pages')
} finally {
  await context.close()
}
