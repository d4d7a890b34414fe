// What the example pages share: asking the HTTP API, and showing a record.

/** A request that was refused, with the problem document that said why (RFC 9457). */
export class Refused extends Error {
  constructor (problem, status) {
    super(problem.detail || problem.title || `HTTP status ${status}`)
    this.title = problem.title || `HTTP status ${status}`
    this.code = problem.code || ''
    this.retriable = problem.retriable === true || (problem.retriable === undefined && status >= 500)
  }
}

/** GETs JSON from the API. */
export async function ask (path, signal) {
  const response = await fetch(path, { signal, headers: { Accept: 'application/json' }, cache: 'no-store' })
  if (response.ok) return response.json()
  let problem = {}
  try {
    problem = await response.json()
  } catch {
    // not a problem document: a proxy answered
  }
  throw new Refused(problem, response.status)
}

/** The names of all topics, page by page. */
export async function topicNames () {
  const names = []
  let query = ''
  do {
    const page = await ask(`/v1/topics${query}`)
    names.push(...page.items.map((topic) => topic.name))
    query = page.next_page_token ? `?${new URLSearchParams({ page_token: page.next_page_token })}` : ''
  } while (query)
  return names
}

/** The elements of the page by their ids. */
export function byId () {
  return Object.fromEntries(Array.from(document.querySelectorAll('[id]'), (element) => [element.id, element]))
}

/** Fills a select. */
export function options (select, values, chosen) {
  select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen)))
}

/** A number of things in words. */
export function count (n, thing) { return `${n} ${thing}${n === 1 ? '' : 's'}` }

function element (name, kind, text) {
  const e = document.createElement(name)
  e.className = kind
  e.textContent = text
  return e
}

/** A table cell of text. A record is never read as HTML. */
export function cell (text, kind) { return element('td', kind, text) }

const longest = 4096 // characters of a text that are shown unasked

/** Text of a record: of a long one the beginning, its size, and a button to show it whole. */
function words (text, kind) {
  if (text.length <= longest) return element('span', kind, text)
  const span = element('span', kind, `${text.slice(0, longest).replace(/[\uD800-\uDBFF]$/, '')}…`) // no half of a character
  const more = element('button', 'more', `Show all ${new Blob([text]).size.toLocaleString('en')} bytes`)
  more.type = 'button'
  more.addEventListener('click', () => { span.textContent = text })
  span.append(more)
  return span
}

/** The time of a record. */
export function time (record) {
  const at = new Date(record.timestamp)
  return cell(isNaN(at) ? String(record.timestamp) : at.toISOString(), 'time')
}

/** The key, or the value with the headers: text if it is text, base64 if it is not, and null or empty said as such. */
export function field (record, name) {
  const text = record[`${name}_str`] ?? record[`${name}_b64`]
  const td = cell('', name)
  if (record[`${name}_b64`] !== undefined) td.title = 'base64'
  if (text) td.append(words(text, ''))
  else td.append(element('i', '', text === '' ? 'empty' : JSON.stringify(record[name] ?? null)))
  if (name === 'value' && record.headers.length > 0) {
    td.append(words(record.headers.map((header) => `${header.name}: ${header.value ?? header.value_b64 ?? 'null'}`).join(' · '), 'headers'))
  }
  return td
}
