// Node's clients: node:http, fetch, and undici with pipelining where it is installed.
//   node clients.mjs ECHO_PORT STREAM_PORT [--own]
// With --own only those that Node ships.
import assert from 'node:assert/strict';
import crypto from 'node:crypto';
import http from 'node:http';
import { Readable } from 'node:stream';

const onlyOwn = process.argv[4] === '--own';
const [echo, stream] = process.argv.slice(2, 4).map(port => `http://127.0.0.1:${port}`);
const body = Buffer.alloc(1 << 20, Buffer.from(Uint8Array.from({ length: 256 }, (_, n) => n)));
const digest = crypto.createHash('sha256').update(body).digest('hex');
const ticks = 'tick\n'.repeat(5);

function* pieces() {
  for (let at = 0; at < body.length; at += 10_007) yield body.subarray(at, at + 10_007);
}

function nodeRequest(url, options, upload) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, options, async response => {
      try {
        resolve(Buffer.concat(await response.toArray()).toString());
      } catch (error) {
        reject(error);
      }
    });
    request.on('error', reject);
    if (upload) upload.pipe(request);
    else request.end();
  });
}

const clients = {
  async 'node:http'() {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 2 });
    for (let n = 0; n < 20; n++) assert.equal(await nodeRequest(`${echo}/`, { agent }), 'hello');
    const options = { agent, method: 'POST' };
    const said = await nodeRequest(`${echo}/echo`, options, Readable.from(pieces()));
    assert.equal(JSON.parse(said).sha256, digest);
    assert.equal(await nodeRequest(`${stream}/stream?name=node&pieces=5&seconds=0.01`, { agent }), ticks);
    agent.destroy();
  },
  async fetch() {
    for (let n = 0; n < 20; n++) assert.equal(await (await fetch(`${echo}/`)).text(), 'hello');
    const sized = await fetch(`${echo}/echo`, { method: 'POST', body });
    assert.equal((await sized.json()).sha256, digest);
    const upload = Readable.toWeb(Readable.from(pieces()));
    const chunked = await fetch(`${echo}/echo`, { method: 'POST', body: upload, duplex: 'half' });
    assert.equal((await chunked.json()).sha256, digest);
    const answer = await fetch(`${stream}/stream?name=fetch&pieces=5&seconds=0.01`);
    assert.equal(await answer.text(), ticks);
  },
  async 'undici, pipelining 8'() {
    const { Pool } = await import('undici');
    const pool = new Pool(echo, { pipelining: 8, connections: 1 });
    const answers = await Promise.all(Array.from({ length: 200 }, (_, n) =>
      pool.request({ path: `/sleep?seconds=${n % 10 ? 0 : 0.01}&say=${n}`, method: 'GET' })
        .then(answer => answer.body.text())));
    answers.forEach((text, n) => assert.equal(text, String(n)));
    await pool.close();
  },
};

let failed = 0;
for (const [name, use] of Object.entries(clients)) {
  if (onlyOwn && name.startsWith('undici')) continue;
  try {
    await use();
    console.log(`ok   ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}: ${error.stack}`);
  }
}
process.exit(failed ? 1 : 0);
