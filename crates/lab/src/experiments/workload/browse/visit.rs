//! One visit as its browser tells it by WebDriver BiDi (w3.org/TR/webdriver-bidi, module `network`): every request with its times, what came of the
//! whole, and the HAR file (HTTP Archive format 1.2).
//!
//! A browser fires `load` also where half of the objects failed: such a visit would be a quick one. So what came is held against the page, and a visit
//! with a request that failed, or without an object that the page has, has failed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};

use super::pages::Page;
use crate::{
    experiments::workload::{Fault, Phases, TransferError},
    results::export::Utc,
};

/// A time that is so far from when it was told, in milliseconds, is of another clock.
const FAR: f64 = 86_400_000.0;

/// What the browser is asked to tell.
pub const EVENTS: [&str; 3] = [
    "network.beforeRequestSent",
    "network.responseCompleted",
    "network.fetchError",
];

/// Requests of a visit that are kept; more than any page has.
const MOST_REQUESTS: usize = 10_000;

/// What a page says of its own load, in milliseconds since it began (w3.org/TR/navigation-timing-2, w3.org/TR/paint-timing). 0: it was not reached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Navigation {
    /// When it began, in milliseconds since 1970.
    pub time_origin: f64,
    /// TCP to the proxy or the target began.
    pub connect_start: f64,
    /// TLS with the target began.
    pub secure_connection_start: f64,
    /// The connection stands, TLS and all.
    pub connect_end: f64,
    /// The request was sent.
    pub request_start: f64,
    /// The answer's first byte.
    pub response_start: f64,
    /// The event `DOMContentLoaded` is over.
    pub dom_content_loaded_event_end: f64,
    /// The event `load` begins: what is called onLoad, or page load time.
    pub load_event_start: f64,
    /// The first text or image was drawn.
    pub first_contentful_paint: f64,
}

impl Navigation {
    /// JavaScript whose promise is this, as JSON, as soon as the page is loaded.
    pub const SCRIPT: &str = "new Promise(done => { const look = () => { const n = performance.getEntriesByType('navigation')[0]; \
        if (!(n && n.loadEventEnd > 0)) return setTimeout(look, 10); \
        const p = performance.getEntriesByName('first-contentful-paint')[0]; \
        done(JSON.stringify({ ...n.toJSON(), timeOrigin: performance.timeOrigin, firstContentfulPaint: p ? p.startTime : 0 })); }; look(); })";
}

/// The times of a request, in milliseconds since 1970. 0: it was not reached, or does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Timings {
    time_origin: f64,
    request_time: f64,
    dns_start: f64,
    dns_end: f64,
    connect_start: f64,
    connect_end: f64,
    tls_start: f64,
    request_start: f64,
    response_start: f64,
    response_end: f64,
}

impl Timings {
    /// `told` is when the browser told of the request: one may count from a beginning of its own.
    fn read(value: &Value, told: f64) -> Self {
        let mut timings = Self::deserialize(value).unwrap_or_default();
        let request = timings.time_origin + timings.request_time;
        let shift = if (request - told).abs() > FAR {
            told - request
        } else {
            0.0
        };
        let origin = timings.time_origin + shift;
        for time in [
            &mut timings.dns_start,
            &mut timings.dns_end,
            &mut timings.connect_start,
            &mut timings.connect_end,
            &mut timings.tls_start,
            &mut timings.request_start,
            &mut timings.response_start,
            &mut timings.response_end,
        ] {
            if *time != 0.0 {
                *time += origin;
            }
        }
        timings.request_time = request + shift;
        timings
    }

    /// From one to another, if both were reached.
    fn span(from: f64, to: f64) -> Option<f64> {
        (from > 0.0 && to >= from).then_some(to - from)
    }

    fn handshake(&self) -> Option<f64> {
        Self::span(self.tls_start, self.connect_end).filter(|time| *time > 0.0)
    }
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Entry {
    url: String,
    method: String,
    /// Milliseconds since 1970.
    began: f64,
    request: Value,
    response: Option<Value>,
    timings: Timings,
    error: Option<String>,
}

impl Entry {
    fn is_open(&self) -> bool {
        self.response.is_none() && self.error.is_none()
    }

    fn response_text(&self, key: &str) -> &str {
        let value = self
            .response
            .as_ref()
            .and_then(|response| response.get(key));
        value.and_then(Value::as_str).unwrap_or_default()
    }

    fn response_number(&self, key: &str) -> f64 {
        let value = self
            .response
            .as_ref()
            .and_then(|response| response.get(key));
        value.and_then(Value::as_f64).unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.response.as_ref()?.get("headers")?.as_array()?;
        let same = |header: &&Value| {
            let known = header.get("name").and_then(Value::as_str);
            known.is_some_and(|known| known.eq_ignore_ascii_case(name))
        };
        headers
            .iter()
            .find(same)?
            .get("value")?
            .get("value")?
            .as_str()
    }

    fn seen_as(&self) -> Option<IpAddr> {
        self.header("x-seen-as")?.parse().ok()
    }

    /// Why it counts as failed.
    fn failure(&self) -> Option<String> {
        let status = self.response_number("status");
        match &self.error {
            Some(error) => Some(error.clone()),
            None if self.response.is_some() && status != 200.0 => Some(format!("status {status}")),
            None => None,
        }
    }
}

/// What is known of a visit. Give it every event of [`EVENTS`] ([`Visit::handle`]); then ask.
#[derive(Clone, Debug, Default)]
pub struct Visit {
    entries: Vec<Entry>,
    by_id: BTreeMap<String, usize>,
}

impl Visit {
    /// Takes an event. What is none, and what would be too many, is left out.
    pub fn handle(&mut self, method: &str, event: &Value) {
        let Some(id) = event.pointer("/request/request").and_then(Value::as_str) else {
            return;
        };
        let url = event.pointer("/request/url").and_then(Value::as_str);
        let url = url.unwrap_or_default();
        if !url.starts_with("http") {
            return;
        }
        let redirects = event.get("redirectCount").and_then(Value::as_u64);
        let place = self.place(format!("{id} {}", redirects.unwrap_or(0)));
        let Some(entry) = place.and_then(|place| self.entries.get_mut(place)) else {
            return;
        };
        let request = event.get("request").cloned().unwrap_or_default();
        let told = event.get("timestamp").and_then(Value::as_f64);
        if entry.url.is_empty() {
            url.clone_into(&mut entry.url);
            let method = request.get("method").and_then(Value::as_str);
            method.unwrap_or("GET").clone_into(&mut entry.method);
            entry.began = told.unwrap_or_default();
        }
        if let Some(timings) = request.get("timings") {
            entry.timings = Timings::read(timings, entry.began);
        }
        entry.request = request;
        match method {
            "network.responseCompleted" => entry.response = event.get("response").cloned(),
            "network.fetchError" => {
                let text = event.get("errorText").and_then(Value::as_str);
                entry.error = Some(text.unwrap_or("it failed").to_owned());
            }
            _ => {}
        }
    }

    fn place(&mut self, id: String) -> Option<usize> {
        if let Some(place) = self.by_id.get(&id) {
            return Some(*place);
        }
        let place = self.entries.len();
        if place >= MOST_REQUESTS {
            return None;
        }
        self.by_id.insert(id, place);
        self.entries.push(Entry::default());
        Some(place)
    }

    /// Objects of the page that came, or failed for good.
    #[must_use]
    pub fn ended(&self, page: &Page) -> usize {
        let urls = urls(page);
        let ended = self.entries.iter().filter(|entry| !entry.is_open());
        let ended: BTreeSet<&str> = ended.map(|entry| entry.url.as_str()).collect();
        ended.iter().filter(|url| urls.contains(**url)).count()
    }

    /// Whether no request waits for its answer.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        !self.entries.iter().any(Entry::is_open)
    }

    /// Whether nothing more is to come.
    #[must_use]
    pub fn is_over(&self, page: &Page) -> bool {
        self.is_quiet() && self.ended(page) >= page.objects.len()
    }

    /// Whether all of the page came as it is.
    ///
    /// # Errors
    /// The first thing that is missing or failed, and how many there are.
    pub fn verdict(&self, page: &Page) -> Result<(), TransferError> {
        let failures = self
            .entries
            .iter()
            .filter_map(|entry| Some((entry, entry.failure()?)));
        let failures: Vec<_> = failures.collect();
        let all = self.entries.len();
        if let Some((entry, why)) = failures.first() {
            let count = failures.len();
            let why = format!(
                "{count} of {all} requests failed, first {}: {why}",
                entry.url
            );
            return Err(fault(&why).because(why));
        }
        let (ended, wanted) = (self.ended(page), page.objects.len());
        if ended < wanted {
            let why = format!("{ended} of the page's {wanted} objects came");
            return Err(Fault::Closed.because(why));
        }
        let (came, whole) = (self.received(), page.bytes());
        if came < whole {
            let why = format!("{came} of the page's {whole} bytes came");
            return Err(Fault::Checksum.because(why));
        }
        Ok(())
    }

    /// Bytes of all bodies as they came.
    #[must_use]
    pub fn received(&self) -> u64 {
        let sizes = self
            .entries
            .iter()
            .map(|entry| whole(entry.response_number("bodySize")));
        sizes.sum()
    }

    /// The addresses that servers saw requests come from, the document's first.
    #[must_use]
    pub fn egresses(&self) -> Vec<IpAddr> {
        let mut found: Vec<IpAddr> = Vec::new();
        for address in self.entries.iter().filter_map(Entry::seen_as) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        found
    }

    /// A visit's phases: the document's, and the last byte of all.
    #[must_use]
    pub fn phases(&self, navigation: &Navigation) -> Phases {
        let reached = |time: f64| (time > 0.0).then(|| micros(time));
        let secure = navigation.secure_connection_start > 0.0;
        let connected = if secure {
            navigation.secure_connection_start
        } else {
            navigation.connect_end
        };
        let ends = self.entries.iter().map(|entry| entry.timings.response_end);
        let last = ends.fold(0.0, f64::max) - navigation.time_origin;
        Phases {
            connect: reached(connected),
            tls: reached(navigation.connect_end).filter(|_| secure),
            command: reached(navigation.request_start),
            response: reached(navigation.response_start),
            first_byte: reached(navigation.response_start),
            last_byte: reached(last),
            ..Phases::default()
        }
    }

    /// Further figures, by name.
    #[must_use]
    pub fn figures(&self, navigation: &Navigation) -> BTreeMap<String, f64> {
        let mut figures = BTreeMap::new();
        let times = [
            ("page_load_us", navigation.load_event_start),
            (
                "dom_content_loaded_us",
                navigation.dom_content_loaded_event_end,
            ),
            (
                "first_contentful_paint_us",
                navigation.first_contentful_paint,
            ),
        ];
        for (name, time) in times.into_iter().filter(|(_, time)| *time > 0.0) {
            figures.insert(name.to_owned(), time * 1e3);
        }
        let handshakes: Vec<f64> = self
            .entries
            .iter()
            .filter_map(|entry| entry.timings.handshake())
            .collect();
        if !handshakes.is_empty() {
            let sum: f64 = handshakes.iter().sum();
            figures.insert("tls_all_us".into(), sum * 1e3 / handshakes.len() as f64);
        }
        let of = |protocol: &str| {
            let same = |entry: &&Entry| {
                entry
                    .response_text("protocol")
                    .eq_ignore_ascii_case(protocol)
            };
            self.entries.iter().filter(same).count() as f64
        };
        figures.insert("handshakes".into(), handshakes.len() as f64);
        figures.insert("requests".into(), self.entries.len() as f64);
        figures.insert("requests_http1".into(), of("http/1.1"));
        figures.insert("requests_http2".into(), of("h2"));
        figures.insert("requests_http3".into(), of("h3"));
        figures.insert("egresses".into(), self.egresses().len() as f64);
        figures
    }

    /// The visit as a HAR file; `title` names the page.
    #[must_use]
    pub fn har(&self, title: &str, browser: &str, navigation: &Navigation) -> Value {
        let began = match navigation.time_origin {
            0.0 => self.entries.first().map_or(0.0, |entry| entry.began),
            origin => origin,
        };
        let reached = |time: f64| if time > 0.0 { json!(time) } else { json!(-1) };
        let (name, version) = browser.rsplit_once(' ').unwrap_or((browser, ""));
        json!({ "log": {
            "version": "1.2",
            "creator": { "name": "hoplite-lab", "version": env!("CARGO_PKG_VERSION") },
            "browser": { "name": name, "version": version },
            "pages": [{
                "startedDateTime": date(began),
                "id": "page",
                "title": title,
                "pageTimings": {
                    "onContentLoad": reached(navigation.dom_content_loaded_event_end),
                    "onLoad": reached(navigation.load_event_start),
                },
            }],
            "entries": self.entries.iter().map(entry).collect::<Vec<Value>>(),
        }})
    }
}

fn urls(page: &Page) -> BTreeSet<String> {
    (0..page.objects.len())
        .map(|object| page.url(object))
        .collect()
}

/// Whose fault it is, by the words of browsers: Firefox's `NS_ERROR_…` and `about:neterror`, Chromium's `net::ERR_…`.
#[must_use]
pub(crate) fn fault(said: &str) -> Fault {
    let said = said.to_ascii_uppercase();
    let any = |words: &[&str]| words.iter().any(|word| said.contains(word));
    match () {
        () if any(&["PROXY", "SOCKS", "TUNNEL"]) => Fault::Proxy,
        () if any(&["SSL", "SEC_ERROR", "CERT", "NSSFAILURE"]) => Fault::Tls,
        () if any(&[
            "REFUSED",
            "UNKNOWN_HOST",
            "DNSNOTFOUND",
            "NAME_NOT_RESOLVED",
            "UNREACHABLE",
            "NETTIMEOUT",
            "NET_TIMEOUT",
            "TIMED_OUT",
            "CONNECTIONFAILURE",
            "CONNECTION_FAILED",
        ]) =>
        {
            Fault::Connect
        }
        () if any(&[
            "RESET",
            "INTERRUPT",
            "ABORT",
            "CLOSED",
            "EMPTY_RESPONSE",
            "PARTIAL",
        ]) =>
        {
            Fault::Closed
        }
        () if any(&["STATUS"]) => Fault::Auth,
        () => Fault::Read,
    }
}

/// A request as HAR has it.
fn entry(entry: &Entry) -> Value {
    let times = &entry.timings;
    let began = if times.request_time > 0.0 {
        times.request_time
    } else {
        entry.began
    };
    let ready = [times.dns_start, times.connect_start, times.request_start];
    let ready = ready.into_iter().find(|time| *time > 0.0);
    let parts = [
        (
            "blocked",
            ready.and_then(|ready| Timings::span(began, ready)),
        ),
        ("dns", Timings::span(times.dns_start, times.dns_end)),
        (
            "connect",
            Timings::span(times.connect_start, times.connect_end),
        ),
        ("send", Some(0.0)),
        (
            "wait",
            Some(Timings::span(times.request_start, times.response_start).unwrap_or(0.0)),
        ),
        (
            "receive",
            Some(Timings::span(times.response_start, times.response_end).unwrap_or(0.0)),
        ),
    ];
    let time: f64 = parts.iter().filter_map(|(_, part)| *part).sum();
    let mut timings: serde_json::Map<String, Value> = parts
        .into_iter()
        .map(|(name, part)| {
            (
                name.to_owned(),
                part.map_or_else(|| json!(-1), |part| json!(part)),
            )
        })
        .collect();
    // "If this field is defined then the time is also included in the connect field."
    timings.insert(
        "ssl".into(),
        times
            .handshake()
            .map_or_else(|| json!(-1), |time| json!(time)),
    );
    let version = http_version(entry.response_text("protocol"));
    let mut har = json!({
        "pageref": "page",
        "startedDateTime": date(began),
        "time": time,
        "request": {
            "method": entry.method,
            "url": entry.url,
            "httpVersion": version,
            "cookies": [],
            "headers": headers(entry.request.get("headers")),
            "queryString": [],
            "headersSize": entry.request.get("headersSize").and_then(Value::as_i64).unwrap_or(-1),
            "bodySize": entry.request.get("bodySize").and_then(Value::as_i64).unwrap_or(0),
        },
        "response": {
            "status": entry.response_number("status"),
            "statusText": entry.response_text("statusText"),
            "httpVersion": version,
            "cookies": [],
            "headers": headers(entry.response.as_ref().and_then(|response| response.get("headers"))),
            "content": {
                "size": entry.response_number("bodySize"),
                "mimeType": entry.response_text("mimeType"),
            },
            "redirectURL": entry.header("location").unwrap_or_default(),
            "headersSize": entry.response_number("headersSize"),
            "bodySize": entry.response_number("bodySize"),
        },
        "cache": {},
        "timings": timings,
    });
    if let (Some(error), Some(har)) = (&entry.error, har.as_object_mut()) {
        // As Chromium's own files have it.
        har.insert("_error".into(), json!(error));
    }
    har
}

fn http_version(protocol: &str) -> &str {
    match protocol {
        "h2" => "HTTP/2",
        "h3" => "HTTP/3",
        "http/1.1" => "HTTP/1.1",
        other => other,
    }
}

fn headers(headers: Option<&Value>) -> Vec<Value> {
    let all = headers.and_then(Value::as_array).map(Vec::as_slice);
    let header = |header: &Value| {
        let value = header.pointer("/value/value").cloned().unwrap_or_default();
        json!({ "name": header.get("name"), "value": value })
    };
    all.unwrap_or_default().iter().map(header).collect()
}

/// Milliseconds since 1970 as ISO 8601 has them.
fn date(milliseconds: f64) -> String {
    Utc::at(milliseconds / 1e3).iso()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float is cut to the range of the integer: what is negative is none"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

fn micros(milliseconds: f64) -> u64 {
    whole(milliseconds * 1e3)
}

/// How a visit that took too long is told.
#[must_use]
pub(crate) fn too_long(visit: &Visit, page: &Page, limit: Duration) -> TransferError {
    let (ended, wanted) = (visit.ended(page), page.objects.len());
    Fault::Timeout.because(format_args!(
        "the page was not loaded after {limit:?}: {ended} of its {wanted} objects had come"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: f64 = 1_800_000_000_000.0;

    fn page() -> Page {
        Page::draw(1, 1)
    }

    fn navigation() -> Navigation {
        Navigation {
            time_origin: ORIGIN,
            connect_start: 10.0,
            secure_connection_start: 30.0,
            connect_end: 55.5,
            request_start: 56.0,
            response_start: 80.0,
            dom_content_loaded_event_end: 300.0,
            load_event_start: 900.0,
            first_contentful_paint: 0.0,
        }
    }

    /// What Firefox tells: times since 1970, an origin of 0.
    fn request(id: usize, url: &str) -> Value {
        json!({
            "request": {
                "request": id.to_string(), "url": url, "method": "GET", "headersSize": 300, "bodySize": 0,
                "headers": [{ "name": "Host", "value": { "type": "string", "value": "x" } }],
                "timings": {
                    "timeOrigin": 0, "requestTime": ORIGIN + 5.0, "dnsStart": 0, "dnsEnd": 0,
                    "connectStart": ORIGIN + 10.0, "tlsStart": ORIGIN + 30.0, "connectEnd": ORIGIN + 50.0,
                    "requestStart": ORIGIN + 56.0, "responseStart": ORIGIN + 80.0, "responseEnd": ORIGIN + 100.0,
                },
            },
            "redirectCount": 0, "timestamp": ORIGIN,
        })
    }

    fn completed(id: usize, url: &str, bytes: u64) -> Value {
        let mut event = request(id, url);
        event["response"] = json!({
            "url": url, "protocol": "h2", "status": 200, "statusText": "OK", "mimeType": "text/css",
            "bodySize": bytes, "headersSize": 120,
            "headers": [{ "name": "X-Seen-As", "value": { "type": "string", "value": "10.77.0.4" } }],
        });
        event
    }

    fn loaded(page: &Page) -> Visit {
        let mut visit = Visit::default();
        for object in 0..page.objects.len() {
            visit.handle(
                "network.beforeRequestSent",
                &request(object, &page.url(object)),
            );
        }
        for object in 0..page.objects.len() {
            let event = completed(object, &page.url(object), page.size(object));
            visit.handle("network.responseCompleted", &event);
        }
        visit
    }

    #[test]
    fn a_page_that_came_whole_is_a_good_visit() {
        let page = page();
        let visit = loaded(&page);
        assert!(visit.is_over(&page));
        assert_eq!(visit.verdict(&page), Ok(()));
        assert_eq!(visit.received(), page.bytes());
        assert_eq!(visit.egresses(), ["10.77.0.4".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn a_request_that_failed_fails_the_visit_and_says_whose_fault_it_is() {
        let (page, failed) = (page(), |error: &str| {
            let page = page();
            let mut visit = loaded(&page);
            let mut event = request(3, &page.url(3));
            event["errorText"] = json!(error);
            visit.handle("network.fetchError", &event);
            visit.verdict(&page).unwrap_err()
        });
        let error = failed("NS_ERROR_PROXY_CONNECTION_REFUSED");
        assert_eq!(error.kind, "PROXY");
        let words = format!(
            "1 of {} requests failed, first {}",
            page.objects.len(),
            page.url(3)
        );
        assert!(error.why.starts_with(&words), "{}", error.why);
        assert_eq!(failed("NS_ERROR_NET_RESET").kind, "CLOSED");
        assert_eq!(failed("net::ERR_SSL_PROTOCOL_ERROR").kind, "TLS");
        assert_eq!(failed("net::ERR_CONNECTION_TIMED_OUT").kind, "CONNECT");
    }

    #[test]
    fn an_object_that_nobody_asked_for_or_that_came_short_fails_the_visit() {
        let page = page();
        let mut visit = Visit::default();
        for object in 0..page.objects.len() - 1 {
            let event = completed(object, &page.url(object), page.size(object));
            visit.handle("network.responseCompleted", &event);
        }
        assert!(!visit.is_over(&page));
        assert_eq!(visit.verdict(&page).unwrap_err().kind, "CLOSED");
        let last = page.objects.len() - 1;
        let event = completed(last, &page.url(last), page.size(last) - 1);
        visit.handle("network.responseCompleted", &event);
        assert!(visit.is_over(&page));
        assert_eq!(visit.verdict(&page).unwrap_err().kind, "CHECKSUM");
    }

    #[test]
    fn an_answer_that_is_no_success_fails_the_visit() {
        let page = page();
        let mut visit = loaded(&page);
        let mut event = completed(1, &page.url(1), page.size(1));
        event["response"]["status"] = json!(404);
        visit.handle("network.responseCompleted", &event);
        assert_eq!(visit.verdict(&page).unwrap_err().kind, "AUTH");
    }

    #[test]
    fn an_open_request_keeps_a_visit_open() {
        let page = page();
        let mut visit = loaded(&page);
        visit.handle(
            "network.beforeRequestSent",
            &request(10_001, "https://www1.h2.pages.test/more"),
        );
        assert!(!visit.is_over(&page));
    }

    #[test]
    fn phases_and_figures_are_those_of_the_document_and_of_all_connections() {
        let page = page();
        let (visit, navigation) = (loaded(&page), navigation());
        let phases = visit.phases(&navigation);
        assert_eq!((phases.connect, phases.tls), (Some(30_000), Some(55_500)));
        assert_eq!(
            (phases.first_byte, phases.last_byte),
            (Some(80_000), Some(100_000))
        );
        let figures = visit.figures(&navigation);
        assert_eq!(figures["page_load_us"], 900_000.0);
        assert_eq!(figures["tls_all_us"], 20_000.0);
        assert_eq!(figures["requests_http2"], page.objects.len() as f64);
        assert!(
            !figures.contains_key("first_contentful_paint_us"),
            "it was not reached"
        );
    }

    #[test]
    fn times_of_another_clock_are_told_from_when_the_request_was_made() {
        let told = |timings: Value| {
            let timings = Timings::read(&timings, ORIGIN);
            [
                timings.request_time,
                timings.dns_start,
                timings.connect_start,
                timings.connect_end,
            ]
            .map(|time| if time > 0.0 { time - ORIGIN } else { -1.0 })
        };
        let since_1970 = json!({ "timeOrigin": 0, "requestTime": ORIGIN + 5.0, "connectStart": ORIGIN + 6.0, "connectEnd": ORIGIN + 9.0 });
        assert_eq!(told(since_1970), [5.0, -1.0, 6.0, 9.0]);
        let since_boot = json!({ "timeOrigin": 7000.0, "requestTime": 0, "dnsStart": 0, "connectStart": 1.0, "connectEnd": 4.0 });
        assert_eq!(told(since_boot), [0.0, -1.0, 1.0, 4.0]);
    }

    #[test]
    fn a_har_file_has_every_request_with_its_times() {
        let page = page();
        let har = loaded(&page).har("page 1", "Firefox 153.7.0", &navigation());
        assert_eq!(har["log"]["version"], "1.2");
        assert_eq!(
            har["log"]["browser"],
            json!({ "name": "Firefox", "version": "153.7.0" })
        );
        assert_eq!(har["log"]["pages"][0]["pageTimings"]["onLoad"], 900.0);
        let entries = har["log"]["entries"].as_array().unwrap();
        assert_eq!(entries.len(), page.objects.len());
        let first = &entries[0];
        assert_eq!(first["startedDateTime"], "2027-01-15T08:00:00.005000Z");
        assert_eq!(first["response"]["httpVersion"], "HTTP/2");
        let timings = &first["timings"];
        let told = ["blocked", "dns", "connect", "ssl", "wait", "receive"]
            .map(|part| timings[part].as_f64().unwrap());
        assert_eq!(told, [5.0, -1.0, 40.0, 20.0, 24.0, 20.0]);
        assert_eq!(first["time"], 89.0);
    }

    #[test]
    fn nonsense_changes_nothing() {
        let mut visit = Visit::default();
        for event in [
            json!(null),
            json!({}),
            json!({ "request": 5 }),
            json!({ "request": { "request": "1", "url": "data:,x" } }),
        ] {
            visit.handle("network.responseCompleted", &event);
        }
        assert!(visit.entries.is_empty());
    }

    #[test]
    fn no_more_is_kept_than_any_page_has() {
        let mut visit = Visit::default();
        for id in 0..MOST_REQUESTS + 5 {
            visit.handle("network.beforeRequestSent", &request(id, "https://x/"));
        }
        assert_eq!(visit.entries.len(), MOST_REQUESTS);
    }
}
