// The page of an issuer: asks for blinded tokens with the account that is typed in, and shows what came of them. The relay's name stays in the browser.

import { begin, challengeDigest, currentKey, decodeBatch, encodeBatch, finish, toBase64Url } from "./blind.js";

const DIRECTORY = "/.well-known/private-token-issuer-directory";
const REQUESTS = "/token-request";
const BATCH = "application/private-token-generic-batch-request";

const at = (id) => document.getElementById(id);
const say = (text, isWrong = false) => {
  at("said").textContent = text;
  at("said").classList.toggle("wrong", isWrong);
};

// No cookies, no question for a password by the browser.
const ask = async (path, more = {}) => {
  const answer = await fetch(path, { credentials: "omit", cache: "no-store", redirect: "error", ...more }).catch(() => {
    throw new Error("the issuer cannot be reached");
  });
  if (!answer.ok) throw new Error(`the issuer says: ${(await answer.text()).slice(0, 300)} (${answer.status})`);
  return answer;
};

const make = async (config, account, origin, number) => {
  const directory = await (await ask(DIRECTORY)).json();
  const key = await currentKey(directory, Date.now() / 1000);
  const challenge = await challengeDigest(config.issuer, origin);
  const pending = [];
  while (pending.length < number) pending.push(await begin(key, challenge));
  // A field's value is bytes: the account's token may have any of UTF-8.
  const shown = String.fromCharCode(...new TextEncoder().encode(account));
  const headers = { Authorization: `Bearer ${shown}`, "Content-Type": BATCH };
  const answer = await ask(REQUESTS, { method: "POST", headers, body: encodeBatch(pending) });
  const signatures = decodeBatch(new Uint8Array(await answer.arrayBuffer()), pending.length);
  const granted = pending.map((one, place) => [one, signatures[place]]).filter(([, signature]) => signature);
  return Promise.all(granted.map(async ([one, signature]) => toBase64Url(await finish(one, signature))));
};

const show = (config, origin, tokens) => {
  const listed = config.relays.find((relay) => relay.origin === origin);
  const address = listed?.address ?? (/^[A-Za-z0-9.-]+$/.test(origin) ? `${origin}:443` : "ADDRESS:443");
  at("curl").textContent = `curl --proxytunnel --proxy 'https://${address}' --proxy-user 'x:${tokens[0]}' https://example.org/`;
  const script = `function FindProxyForURL(url, host) { return "HTTPS ${address}"; }`;
  at("proxy").textContent = `data:application/x-ns-proxy-autoconfig,${encodeURIComponent(script)}`;
  const item = (token) => {
    const [line, code] = ["li", "code"].map((name) => document.createElement(name));
    code.textContent = token;
    line.append(code);
    return line;
  };
  at("tokens").replaceChildren(...tokens.map(item));
  at("made").hidden = false;
};

const config = await (await ask("/page.json")).json();
for (const { origin } of config.relays) {
  const option = document.createElement("option");
  option.value = origin;
  at("relays").append(option);
}
if (config.relays.length === 1) at("relay").value = config.relays[0].origin;

at("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [account, origin, number] = ["account", "relay", "number"].map((id) => at(id).value.trim());
  at("make").disabled = true;
  at("made").hidden = true;
  say("Making them…");
  try {
    const tokens = await make(config, account, origin, Number(number));
    if (tokens.length === 0) throw new Error("the issuer gave none");
    show(config, origin, tokens);
    const fewer = tokens.length < Number(number) ? " There are no more for you today." : "";
    say(`${tokens.length} made.${fewer}`);
  } catch (error) {
    say(error.message, true);
  } finally {
    at("make").disabled = false;
  }
});
