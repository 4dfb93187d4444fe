// Source: where the page reads its documents: out of the file that it is in, or from the server that sent it.

/**
 * @typedef {object} Source
 * @property {boolean} isLive
 * @property {(name: string) => Promise<any>} get
 * @property {(run: number, text: string, onHit: (hit: object) => void, signal: AbortSignal) => Promise<string>} search
 * @property {(onChange: (change: object) => void, onState: (isConnected: boolean) => void) => void} follow
 */

/** @returns {Source} */
export function openSource() {
  const blocks = new Map(
    [...document.querySelectorAll("script[data-document]")].map((block) => [
      block.getAttribute("data-document"),
      block,
    ]),
  );
  return blocks.size ? fileSource(blocks) : serverSource();
}

function fileSource(blocks) {
  async function get(name) {
    const block = blocks.get(name);
    if (!block) throw new Error(absent(name));
    const unpacked = new Blob([bufferOf(block.textContent.trim())])
      .stream()
      .pipeThrough(new DecompressionStream("gzip"));
    return whole(await new Response(unpacked).json());
  }
  async function search(run, text, onHit, signal) {
    const matches = matcher(text);
    const trees = [...blocks.keys()].filter((name) => name.match(`^run/${run}/tree/\\d+$`));
    const faults = [];
    for (const name of trees) {
      const tree = await get(name).catch((error) => faults.push(error.message) && { chunks: [] });
      for (let chunk = 0; chunk < tree.chunks.length; chunk += 1) {
        if (signal.aborted) return "";
        if (!blocks.has(`${name}/tokens/${chunk}`)) continue;
        const tokens = tokenTexts(await get(`${name}/tokens/${chunk}`));
        tokens.forEach((said, place) => {
          const found = matches(said);
          if (found) onHit({ tree: tree.tree, node: tokens.first + place, excerpt: found });
        });
      }
    }
    return faults.length ? `${faults.length} trees were not searched: ${faults[0]}` : "";
  }
  return { isLive: false, get, search, follow() {} };
}

/** Why a document is not in the file. */
function absent(name) {
  if (name.includes("/tokens/")) return "this file holds no tokens: it was written with --no-tokens";
  if (name.includes("/tree/")) return "this file does not hold this tree: it was written with --tree or --max-nodes";
  return `this file holds no document ${name}`;
}

function serverSource() {
  const root = new URL("documents/", location.href);
  async function get(name) {
    const answer = await fetch(new URL(name, root));
    return whole(await answer.json());
  }
  async function search(run, text, onHit, signal) {
    const answer = await fetch(new URL(`../search?run=${run}&text=${encodeURIComponent(text)}`, root), { signal });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    found.hits.forEach(onHit);
    return found.note;
  }
  function follow(onChange, onState) {
    const events = new EventSource(new URL("../changes", root));
    events.onmessage = (event) => onChange(JSON.parse(event.data));
    events.onopen = () => onState(true);
    events.onerror = () => onState(false);
  }
  return { isLive: true, get, search, follow };
}

/** A document that could be made; another one says only why it could not. */
function whole(found) {
  if (found.error !== undefined) throw new Error(found.error);
  return found;
}

/** A function that says where a text fits: an excerpt, or null. `/…/` is a regular expression, all else plain words. */
export function matcher(text) {
  const pattern = text.match(/^\/(.+)\/$/s);
  const wanted = pattern ? new RegExp(pattern[1], "iu") : null;
  return (said) => {
    const at = wanted ? said.search(wanted) : said.toLowerCase().indexOf(text.toLowerCase());
    return at < 0 ? null : said.slice(Math.max(0, at - 40), at + 80);
  };
}

/** The text of each node of a token document. */
export function tokenTexts(tokens) {
  const texts = tokens.nodes.map((node) => {
    const vocabulary = spellings(tokens.vocabularies[node.codec]);
    return node.segments.map((segment) => textOf(idsOf(segment), vocabulary)).join("");
  });
  return Object.assign(texts, { first: tokens.first });
}

/** Id -> the bytes of the token. */
export function spellings(vocabulary) {
  const encoder = new TextEncoder();
  return new Map(vocabulary.map(([id, text, hex]) => [id, text === null ? bytesOfHex(hex) : encoder.encode(text)]));
}

export function idsOf(segment) {
  return new Int32Array(ungrouped(bufferOf(segment.ids)));
}

/** The values of a packed float32 array; null = not computed. */
export function floatsOf(packed) {
  return packed === undefined || packed === null ? null : new Float32Array(ungrouped(bufferOf(packed)));
}

/** Numbers of four bytes each, out of their first bytes, their second bytes, and so on: so they compress better. */
function ungrouped(buffer) {
  const grouped = new Uint8Array(buffer);
  const number = grouped.length / 4;
  const bytes = new Uint8Array(grouped.length);
  for (let place = 0; place < number; place += 1) {
    for (let byte = 0; byte < 4; byte += 1) bytes[4 * place + byte] = grouped[byte * number + place];
  }
  return bytes.buffer;
}

function bufferOf(packed) {
  const characters = atob(packed);
  const bytes = new Uint8Array(characters.length);
  for (let place = 0; place < bytes.length; place += 1) bytes[place] = characters.charCodeAt(place);
  return bytes.buffer;
}

function bytesOfHex(hex) {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/** The text of ids. Characters may be spread over several tokens. All bytes are decoded at once: texts may be long. */
export function textOf(ids, vocabulary) {
  let size = 0;
  for (const id of ids) size += vocabulary.get(id).length;
  const bytes = new Uint8Array(size);
  let end = 0;
  for (const id of ids) for (const byte of vocabulary.get(id)) bytes[end++] = byte;
  return exactDecoder().decode(bytes);
}

/** A byte order mark is a character like any other. */
function exactDecoder() {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

/** The text of each id. A character that several tokens spell stands at the last of them. */
export function tokensOf(ids, vocabulary) {
  const decoder = exactDecoder();
  const texts = Array.from(ids, (id) => decoder.decode(vocabulary.get(id), { stream: true }));
  const rest = decoder.decode();
  if (rest && texts.length) texts[texts.length - 1] += rest;
  return texts;
}
