// Lets programs that use the npm package @superserve/sdk, unchanged, work with a Ringfence server.
//
//   NODE_OPTIONS="--import /path/to/node.mjs" SUPERSERVE_BASE_URL=http://127.0.0.1:7070/superserve node program.mjs
//
// The package sends commands and files to host names of its vendor that no setting changes. In a process
// that this file is loaded into, fetch and WebSocket send what is meant for those names to the server of
// SUPERSERVE_BASE_URL instead, and refuse every other name of the vendor: nothing of it leaves for there.
const vendor = "superserve.ai"
const dataHosts = [`sandbox.${vendor}`, `usw-sandbox.${vendor}`, `staging-sandbox.${vendor}`]
const sandboxHeader = "X-Superserve-Sandbox-Id"

const isVendor = (name) => name === vendor || name.endsWith(`.${vendor}`)

function base() {
	const text = process.env.SUPERSERVE_BASE_URL?.trim()
	if (!text) throw new TypeError("SUPERSERVE_BASE_URL is not set, and without it nothing may call superserve.ai from here")
	const url = new URL(text)
	if (isVendor(url.hostname)) throw new TypeError("SUPERSERVE_BASE_URL is superserve.ai itself, which nothing may call from here")
	return url
}

/** Where a URL of the vendor's leads, with the headers that go with it; undefined for any other URL. */
function redirect(input) {
	let url
	try {
		url = new URL(input)
	} catch {
		return undefined // whoever takes it says what is wrong with it
	}
	const name = url.hostname.replace(/\.$/, "")
	if (!isVendor(name)) return undefined
	const host = dataHosts.find((each) => name === each || name.endsWith(`.${each}`))
	const label = host && name.slice(0, -host.length - 1)
	const [, first, id] = /^(boxd|[0-9]+)-([a-z0-9-]+)$/.exec(label ?? "") ?? []
	if (host === undefined || (label !== "" && first === undefined))
		throw new TypeError(`${name} may not be called from here; SUPERSERVE_BASE_URL is what the package calls`)
	const to = base()
	const secure = to.protocol === "https:"
	if (/^wss?:$/.test(url.protocol)) to.protocol = secure ? "wss:" : "ws:"
	const root = to.pathname.replace(/\/+$/, "")
	to.search = url.search
	if (first === undefined || first === "boxd") {
		to.pathname = root + url.pathname
		return { url: to.href, headers: first ? { [sandboxHeader]: id } : {} }
	}
	// A port of a sandbox. Whoever has the key may use it, published or not; the key goes no further than the server.
	to.pathname = `${root}/sandboxes/${id}/ports/${first}${url.pathname}`
	const key = process.env.SUPERSERVE_API_KEY
	return { url: to.href, headers: key ? { "X-API-Key": key } : {} }
}

const realFetch = globalThis.fetch
globalThis.fetch = async function fetch(input, init) {
	const request = input instanceof Request ? input : undefined
	const to = redirect(request ? request.url : input)
	if (to === undefined) return realFetch(input, init)
	const headers = new Headers(init?.headers ?? request?.headers)
	for (const [name, value] of Object.entries(to.headers)) if (!headers.has(name)) headers.set(name, value)
	return realFetch(request ? new Request(to.url, request) : to.url, { ...init, headers })
}

if (globalThis.WebSocket !== undefined) {
	const RealWebSocket = globalThis.WebSocket
	globalThis.WebSocket = class WebSocket extends RealWebSocket {
		constructor(url, protocols) {
			const to = redirect(url)
			if (to === undefined) super(url, protocols)
			else {
				// The runtime's own takes headers too; other implementations go without them.
				const options = Array.isArray(protocols) || typeof protocols === "string" ? { protocols } : { ...protocols }
				super(to.url, { ...options, headers: { ...options.headers, ...to.headers } })
			}
		}
	}
}
