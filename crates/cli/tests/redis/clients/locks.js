// Real Node.js lock clients against one port, as their users call them.
//
//     node locks.js KIND PORT promises          every call of the lock, one by one
//     node locks.js KIND PORT crowd FILE ROUNDS takes turns with everybody else: writes "enter" and "leave" lines
//     node locks.js hashes                      the SHA-1 of every script of the installed clients
//
// KIND: redlock4, redlock5, sesamecare. The packages are found through NODE_PATH.
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const crypto = require("node:crypto");
const Redis = require("ioredis");

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Each as { acquire(keys, ttl), extend(lock, ttl), release(lock) }; a refusal throws.
function locker(kind, client) {
  if (kind === "redlock4") {
    const Redlock = require("redlock4");
    const redlock = new Redlock([client], { retryCount: 0 });
    redlock.on("clientError", () => {});
    return {
      acquire: (keys, ttl) => redlock.lock(keys, ttl),
      extend: (lock, ttl) => lock.extend(ttl),
      release: (lock) => lock.unlock(),
    };
  }
  const { default: Redlock, Redlock: Named } = kind === "redlock5" ? require("redlock") : require("@sesamecare-oss/redlock");
  const redlock = new (Named ?? Redlock)([client], { retryCount: 0 });
  redlock.on?.("error", () => {});
  return {
    acquire: (keys, ttl) => redlock.acquire(keys, ttl),
    extend: (lock, ttl) => lock.extend(ttl),
    release: (lock) => lock.release(),
  };
}

async function refused(promise, why) {
  await assert.rejects(promise, undefined, why);
}

async function promises(kind, port) {
  const client = new Redis(port);
  const locks = locker(kind, client);
  const [one, two] = [`${kind}/one`, `${kind}/two`];
  let lock = await locks.acquire([one, two], 30000);
  await refused(locks.acquire([two], 30000), "held");
  await refused(locks.acquire([`${kind}/three`, one], 30000), "one of two is held");
  assert.strictEqual(await client.exists(`${kind}/three`), 0, "all or none");
  lock = await locks.extend(lock, 60000);
  assert((await client.pttl(one)) > 30000 && (await client.pttl(two)) > 30000);
  await locks.release(lock);
  assert.strictEqual(await client.exists(one, two), 0);
  // A lock that nobody extends ends by itself, and can't be extended or released then.
  const short = await locks.acquire([one], 300);
  while ((await client.exists(one)) === 1) await pause(20);
  const next = await locks.acquire([one], 30000);
  await refused(locks.extend(short, 30000), "expired");
  await locks.release(short).catch(() => {});
  assert.strictEqual(await client.exists(one), 1, "a late release ended another's lock");
  await locks.release(next);
  client.disconnect();
}

async function crowd(kind, port, path, rounds) {
  const client = new Redis(port, { maxRetriesPerRequest: 1, retryStrategy: () => 50 });
  client.on("error", () => {});
  const locks = locker(kind, client);
  for (let done = 0; done < rounds; ) {
    let lock;
    try {
      lock = await locks.acquire(["crowd"], 5000);
    } catch {
      await pause(10);
      continue;
    }
    fs.appendFileSync(path, `enter ${kind} ${process.pid} ${done}\n`);
    fs.appendFileSync(path, `leave ${kind} ${process.pid} ${done}\n`);
    done += 1;
    await locks.release(lock).catch(() => {});
  }
  client.disconnect();
}

// The packages keep their scripts to themselves: what they would send is what they define or evaluate.
async function hashes() {
  const seen = new Set();
  const sha = (text) => crypto.createHash("sha1").update(text).digest("hex");
  for (const kind of ["redlock4", "redlock5", "sesamecare"]) {
    const client = {
      options: {},
      on() {},
      defineCommand(name, { lua }) {
        seen.add(sha(lua));
        this[name] = () => Promise.resolve(1);
      },
      eval(...arguments_) {
        seen.add(sha(Array.isArray(arguments_[0]) ? arguments_[0][0] : arguments_[0]));
        const done = arguments_.at(-1);
        return typeof done === "function" ? done(null, 1) : Promise.resolve(1);
      },
      evalsha(hash, ...arguments_) {
        seen.add(hash);
        const done = arguments_.at(-1);
        return typeof done === "function" ? done(null, 1) : Promise.resolve(1);
      },
    };
    const locks = locker(kind, client);
    const lock = await locks.acquire(["k"], 30000);
    await locks.release(await locks.extend(lock, 30000));
  }
  for (const hash of seen) console.log(hash);
}

const [kind, port, what, path, rounds] = process.argv.slice(2);
const work =
  kind === "hashes" ? hashes() : what === "promises" ? promises(kind, Number(port)) : crowd(kind, Number(port), path, Number(rounds));
work.catch((error) => {
  console.error(error);
  process.exit(1);
});
