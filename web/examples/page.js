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

/** A table cell of text. A record is never read as HTML. */
export function cell (text, kind) {
  const td = document.createElement('td')
  td.className = kind
  td.textContent = text
  return td
}

/** The time of a record. */
export function time (record) {
  const at = new Date(record.timestamp)
  return cell(isNaN(at) ? String(record.timestamp) : at.toISOString(), 'time')
}

/** The key or value: text if it is text, base64 if it is not, and null or empty said as such. */
export function field (record, name) {
  const text = record[`${name}_str`] ?? record[`${name}_b64`]
  if (text !== undefined && text !== '') {
    const td = cell(text, name)
    if (record[`${name}_b64`] !== undefined) td.title = 'base64'
    return td
  }
  const td = cell('', name)
  const remark = document.createElement('i')
  if (text === '') remark.textContent = 'empty'
  else if (record[name] === null || record[name] === undefined) remark.textContent = 'null'
  else remark.textContent = JSON.stringify(record[name])
  td.append(remark)
  return td
}
