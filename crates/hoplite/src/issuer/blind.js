// Tokens of type 2 in a browser: blinded, unblinded and verified here, so that whoever signs one does not see it. RFC 9578 §6, RFC 9474
// (RSABSSA-SHA384-PSS-Deterministic), batches by draft-ietf-privacypass-batched-tokens-08. WebCrypto has no blinding: the arithmetic is BigInt's.

const TYPE = 2;
const SIZE = 256; // bytes of a modulus, of what is signed, and of a signature
const SALT = 48;
const HASH = 48;

const concat = (...parts) => {
  const out = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  parts.reduce((at, part) => (out.set(part, at), at + part.length), 0);
  return out;
};
const digest = async (name, bytes) => new Uint8Array(await crypto.subtle.digest(name, bytes));
const random = (size) => crypto.getRandomValues(new Uint8Array(size));
const u16 = (number) => Uint8Array.of(number >> 8, number & 255);

const toNumber = (bytes) => BigInt("0x" + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(""));
const toBytes = (number, size) => {
  const hex = number.toString(16).padStart(2 * size, "0");
  return Uint8Array.from({ length: size }, (_, at) => parseInt(hex.slice(2 * at, 2 * at + 2), 16));
};

export const toBase64Url = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_");
export const fromBase64Url = (text) =>
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));

const power = (base, exponent, modulus) => {
  let result = 1n;
  for (let square = base % modulus; exponent > 0n; exponent >>= 1n, square = (square * square) % modulus) {
    if (exponent & 1n) result = (result * square) % modulus;
  }
  return result;
};

// undefined where there is none.
const inverse = (number, modulus) => {
  let [a, b, x, y] = [number % modulus, modulus, 1n, 0n];
  while (a > 1n) {
    if (b === 0n) return undefined;
    const quotient = a / b;
    [a, b, x, y] = [b, a % b, y, x - quotient * y];
  }
  return a === 1n ? ((x % modulus) + modulus) % modulus : undefined;
};

// One element of DER at `at`: its tag, its content, and where it ends.
const element = (bytes, at) => {
  let length = bytes[at + 1];
  let start = at + 2;
  if (length > 128) {
    const size = length - 128;
    length = Number(toNumber(bytes.slice(start, start + size)));
    start += size;
  }
  if (!(start + length <= bytes.length)) throw new Error("the issuer's key is cut off");
  return { tag: bytes[at], content: bytes.slice(start, start + length), end: start + length };
};

// An issuer's key as its directory has it (RFC 9578 §6.5).
export const readKey = async (spki) => {
  const outer = element(spki, 0).content;
  const bits = element(outer, element(outer, 0).end);
  const pair = element(bits.content, 1).content; // before it, how many bits are not used: 0
  const n = element(pair, 0);
  const e = element(pair, n.end);
  const [modulus, exponent] = [toNumber(n.content), toNumber(e.content)];
  if (bits.tag !== 3 || modulus >> 2047n !== 1n || !(modulus & 1n) || exponent < 3n || exponent > 0xffffffffn) {
    throw new Error("the issuer's key is none for tokens of type 2");
  }
  const unpadded = (number) => toBase64Url(toBytes(number, Math.ceil(number.toString(16).length / 2))).replaceAll("=", "");
  const jwk = { kty: "RSA", alg: "PS384", n: unpadded(modulus), e: unpadded(exponent) };
  const verifier = await crypto.subtle.importKey("jwk", jwk, { name: "RSA-PSS", hash: "SHA-384" }, false, ["verify"]);
  return { id: await digest("SHA-256", spki), modulus, exponent, verifier };
};

// Of the keys that are in use the first (RFC 9578 §4).
export const currentKey = async (directory, now) => {
  const used = directory["token-keys"].find((key) => key["token-type"] === TYPE && (key["not-before"] ?? 0) <= now);
  if (!used) throw new Error("the issuer has no key in use");
  return readKey(fromBase64Url(used["token-key"]));
};

// What a token is bound to (RFC 9577 §2.1): an issuer and the name that a relay takes tokens for.
export const challengeDigest = (issuer, origin) => {
  const [from, to] = [issuer, origin].map((name) => new TextEncoder().encode(name));
  return digest("SHA-256", concat(u16(TYPE), u16(from.length), from, Uint8Array.of(0), u16(to.length), to));
};

const mask = async (seed, size) => {
  const blocks = [];
  for (let count = 0; count * HASH < size; count++) {
    blocks.push(await digest("SHA-384", concat(seed, toBytes(BigInt(count), 4))));
  }
  return concat(...blocks).slice(0, size);
};

// EMSA-PSS-ENCODE for 2047 bits (RFC 8017 §9.1.1).
const encode = async (message, salt) => {
  const hash = await digest("SHA-384", concat(new Uint8Array(8), await digest("SHA-384", message), salt));
  const data = concat(new Uint8Array(SIZE - SALT - HASH - 2), Uint8Array.of(1), salt);
  const masked = (await mask(hash, data.length)).map((byte, at) => byte ^ data[at]);
  masked[0] &= 127;
  return concat(masked, hash, Uint8Array.of(0xbc));
};

// Begins a token: the request of RFC 9578 §6.1, and what `finish` needs. The last three are random but in tests.
export const begin = async (key, challenge, nonce = random(32), salt = random(SALT), blind = undefined) => {
  const head = concat(u16(TYPE), nonce, challenge, key.id);
  const message = toNumber(await encode(head, salt));
  let factor = blind ?? toNumber(random(SIZE));
  let unblind;
  while (factor >= key.modulus || (unblind = inverse(factor, key.modulus)) === undefined) {
    factor = toNumber(random(SIZE));
  }
  if (inverse(message, key.modulus) === undefined) throw new Error("the issuer's key is none");
  const blinded = (message * power(factor, key.exponent, key.modulus)) % key.modulus;
  const request = concat(u16(TYPE), key.id.slice(-1), toBytes(blinded, SIZE));
  return { request, key, head, unblind };
};

// The token, if the answer is the signature that was asked for (RFC 9578 §6.3).
export const finish = async ({ key, head, unblind }, answer) => {
  const signature = toBytes((toNumber(answer) * unblind) % key.modulus, SIZE);
  const how = { name: "RSA-PSS", saltLength: SALT };
  if (!(await crypto.subtle.verify(how, key.verifier, signature, head))) {
    throw new Error("the issuer's answer is no signature of its key");
  }
  return concat(head, signature);
};

// A batch: the length as of QUIC in four bytes, then the requests.
export const encodeBatch = (pending) => {
  const items = concat(...pending.map(({ request }) => request));
  return concat(toBytes(BigInt(items.length) | 0x80000000n, 4), items);
};

// A signature for each of so many requests, or undefined where it was not granted.
export const decodeBatch = (bytes, asked) => {
  const wrong = () => new Error("the issuer's answer is none to what was asked");
  const size = 1 << ((bytes[0] ?? 0) >> 6);
  const length = toNumber(concat(Uint8Array.of(bytes[0] & 63), bytes.slice(1, size)));
  if (BigInt(bytes.length - size) !== length) throw wrong();
  const signatures = [];
  let at = size;
  while (at < bytes.length && signatures.length < asked) {
    if (bytes[at] === 0) {
      signatures.push(undefined);
      at += 1;
    } else {
      if (bytes[at] !== 1 || bytes[at + 1] !== 0 || bytes[at + 2] !== TYPE || at + 3 + SIZE > bytes.length) throw wrong();
      signatures.push(bytes.slice(at + 3, at + 3 + SIZE));
      at += 3 + SIZE;
    }
  }
  if (at !== bytes.length || signatures.length !== asked) throw wrong();
  return signatures;
};
