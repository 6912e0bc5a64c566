//! Visits: a browser is started, visits one page and is ended, page after page. Each visit is a transfer; what goes wrong (a browser that hangs or ends, a page that
//! never loads, a way in that dies) is its error, and the next visit goes on.

mod bidi;
mod browser;

use std::{
    fs, io,
    net::{IpAddr, TcpListener},
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use self::{
    bidi::{Session, Unanswered},
    browser::{Program, Setting},
};
use super::{client::Out, record::Record};
use crate::experiments::workload::{
    Fault, Kind, Order, Transfer, TransferError,
    browse::{
        Browse, Surroundings,
        pages::Page,
        visit::{EVENTS, Navigation, Visit, fault, too_long},
    },
};

/// How long a browser may take for an answer that needs no network.
const ANSWER: Duration = Duration::from_secs(10);

/// A page that is loaded and asks for nothing for so long asks for nothing more: what is missing then is missing.
const QUIET: Duration = Duration::from_secs(2);

/// Visits all pages.
pub(crate) async fn run(order: &Order, out: Out<'_>) -> io::Result<()> {
    let Kind::Browse(browse) = &order.plan.kind else {
        return Ok(());
    };
    let Some(surroundings) = &order.surroundings else {
        let why = Fault::Misc.because("nobody said where the authority of the pages is");
        return out(Record::start([0; 2]).transfer(order, 1, 1, Err(why)));
    };
    let visitor = Visitor {
        order,
        browse,
        surroundings,
    };
    for number in 1..=browse.count() {
        out(visitor.visit(number).await)?;
    }
    Ok(())
}

/// Who visits.
struct Visitor<'a> {
    order: &'a Order,
    browse: &'a Browse,
    surroundings: &'a Surroundings,
}

impl Visitor<'_> {
    async fn visit(&self, number: u32) -> Transfer {
        let page = Page::draw(self.browse.seed, self.browse.page_of(number));
        let limit = self.order.plan.stall;
        let started = timeout(limit, self.start(number)).await;
        let started = started.unwrap_or_else(|_| {
            let why = format!("the browser was not ready after {limit:?}");
            Err(Fault::Stall.because(why))
        });
        let (mut program, mut session, name) = match started {
            Ok(started) => started,
            Err(error) => {
                let record = Record::start([0, page.bytes()]);
                return self.tell(record, (&page, number), &Seen::default(), Err(error));
            }
        };
        sleep(self.browse.settle).await;
        let record = Record::start([0, page.bytes()]);
        let mut seen = Seen::default();
        let outcome = tokio::select! {
            outcome = self.load(&mut session, &page, &mut seen) => outcome,
            ended = program.ended() => Err(crashed(&ended)),
        };
        program.end().await;
        let outcome = outcome.and_then(|()| seen.visit.verdict(&page));
        let kept = self.keep(&page, number, &seen, &name);
        self.tell(record, (&page, number), &seen, outcome.and(kept))
    }

    /// A browser with a session that tells of requests, and what it calls itself.
    async fn start(&self, number: u32) -> Result<(Program, Session, String), TransferError> {
        if self.order.target.parse::<IpAddr>().is_err() {
            let why = "pages have many hosts, and this way in leads to one name";
            return Err(Fault::Misc.because(why));
        }
        let home = self.surroundings.scratch.join(format!("profile-{number}"));
        let setting = Setting {
            authority: &self.surroundings.authority,
            way: &self.order.way,
        };
        let browser = browser::of(self.browse.browser);
        let started = Program::start(browser, &home, setting).await;
        let (program, mut session) =
            started.map_err(|error| Fault::Misc.because(format_args!("no browser: {error}")))?;
        let subscribed = session
            .call(
                "session.subscribe",
                &json!({ "events": EVENTS }),
                &mut |_, _| {},
            )
            .await;
        subscribed.map_err(|why| unanswered(&why))?;
        let agent = evaluate(&mut session, "navigator.userAgent", &mut |_, _| {}).await?;
        Ok((program, session, name_of(&agent)))
    }

    async fn load(
        &self,
        session: &mut Session,
        page: &Page,
        seen: &mut Seen,
    ) -> Result<(), TransferError> {
        let limit = self.order.plan.timeout;
        if let Ok(outcome) = timeout(limit, conversation(session, page, seen)).await {
            return outcome;
        }
        // Whose fault it is: a browser that works still answers.
        let asked = async {
            let nothing = json!({});
            session
                .call("session.status", &nothing, &mut |_, _| {})
                .await
        };
        match timeout(ANSWER, asked).await {
            Ok(Ok(_) | Err(Unanswered::Refused { .. })) => Err(too_long(&seen.visit, page, limit)),
            Ok(Err(why)) => Err(unanswered(&why)),
            Err(_) => Err(Fault::Stall.because(format_args!(
                "the browser hangs: no answer for {ANSWER:?} after a visit of {limit:?}"
            ))),
        }
    }

    /// What was seen, as a transfer tells it.
    fn tell(
        &self,
        mut record: Record,
        (page, number): (&Page, u32),
        seen: &Seen,
        outcome: Result<(), TransferError>,
    ) -> Transfer {
        record.seen_as = exposed(&seen.visit.egresses());
        record.moved[1] = seen.visit.received();
        record.more = seen.visit.figures(&seen.navigation);
        record.tell("page", f64::from(self.browse.page_of(number)));
        record.tell("visit", f64::from(self.browse.round_of(number)));
        record.tell("objects", page.objects.len() as f64);
        let mut transfer = record.transfer(self.order, number, 1, outcome);
        // Of a browser's bytes one knows the times that it tells.
        transfer.phases = seen.visit.phases(&seen.navigation);
        if transfer.error.is_some() {
            transfer.phases.last_byte = None;
        }
        transfer
    }

    /// Writes the HAR file, also of a visit that failed.
    fn keep(
        &self,
        page: &Page,
        number: u32,
        seen: &Seen,
        browser: &str,
    ) -> Result<(), TransferError> {
        let Some(directory) = &self.surroundings.har else {
            return Ok(());
        };
        let (place, round) = (self.browse.page_of(number), self.browse.round_of(number));
        let har = seen.visit.har(&page.url(0), browser, &seen.navigation);
        let path = directory.join(format!("page{place:03}-visit{round}.har"));
        write(&path, &har).map_err(|error| {
            Fault::Disk.because(format_args!("writing {}: {error}", path.display()))
        })
    }
}

fn write(path: &Path, har: &Value) -> io::Result<()> {
    fs::write(path, serde_json::to_vec(har)?)
}

/// What a visit has shown.
#[derive(Debug, Default)]
struct Seen {
    visit: Visit,
    navigation: Navigation,
}

/// The visit itself: until the page is loaded, and all of its objects have come.
async fn conversation(
    session: &mut Session,
    page: &Page,
    seen: &mut Seen,
) -> Result<(), TransferError> {
    let visit = &mut seen.visit;
    let mut hear = |method: &str, event: &Value| visit.handle(method, event);
    let context = context(session, &mut hear).await?;
    let order = json!({ "context": context, "url": page.url(0), "wait": "complete" });
    let loaded = session
        .call("browsingContext.navigate", &order, &mut hear)
        .await;
    loaded.map_err(|why| unanswered(&why))?;
    let told = evaluate(session, Navigation::SCRIPT, &mut hear).await?;
    let navigation = serde_json::from_str(&told);
    seen.navigation = navigation.map_err(|error| {
        Fault::Misc.because(format_args!("the browser's times cannot be read: {error}"))
    })?;
    while !seen.visit.is_over(page) {
        let visit = &mut seen.visit;
        let mut hear = |method: &str, event: &Value| visit.handle(method, event);
        match timeout(QUIET, session.listen(&mut hear)).await {
            Ok(heard) => heard.map_err(|why| unanswered(&why))?,
            Err(_) if seen.visit.is_quiet() => break,
            Err(_) => {}
        }
    }
    Ok(())
}

/// The one tab of a fresh browser.
async fn context(session: &mut Session, hear: bidi::Hear<'_>) -> Result<String, TransferError> {
    let tree = session
        .call("browsingContext.getTree", &json!({}), hear)
        .await;
    let tree = tree.map_err(|why| unanswered(&why))?;
    let context = tree.pointer("/contexts/0/context").and_then(Value::as_str);
    let context = context.ok_or_else(|| Fault::Misc.because("the browser has no tab"))?;
    Ok(context.to_owned())
}

/// What JavaScript comes to in the tab, a text.
async fn evaluate(
    session: &mut Session,
    script: &str,
    hear: bidi::Hear<'_>,
) -> Result<String, TransferError> {
    let context = context(session, hear).await?;
    let order =
        json!({ "expression": script, "target": { "context": context }, "awaitPromise": true });
    let done = session.call("script.evaluate", &order, hear).await;
    let done = done.map_err(|why| unanswered(&why))?;
    let text = done.pointer("/result/value").and_then(Value::as_str);
    let text = text.ok_or_else(|| Fault::Misc.because(format_args!("a script came to {done}")))?;
    Ok(text.to_owned())
}

/// `Firefox 153.0` of a user agent.
fn name_of(agent: &str) -> String {
    let known = ["Firefox/", "HeadlessChrome/", "Chrome/"];
    let word = agent
        .split(' ')
        .find(|word| known.iter().any(|name| word.starts_with(name)));
    word.unwrap_or(agent).replacen('/', " ", 1)
}

fn unanswered(why: &Unanswered) -> TransferError {
    match why {
        Unanswered::Gone(_) => Fault::Closed.because(why),
        Unanswered::Refused { .. } => fault(&why.to_string()).because(why),
    }
}

fn crashed(ended: &io::Result<std::process::ExitStatus>) -> TransferError {
    Fault::Closed.because(match ended {
        Ok(status) => format!("the browser ended in the visit: {status}"),
        Err(error) => format!("the browser's end was not seen: {error}"),
    })
}

/// The address to tell: this host's own if a single request showed it, else the document's.
fn exposed(egresses: &[IpAddr]) -> Option<IpAddr> {
    let own = |address: &&IpAddr| TcpListener::bind((**address, 0)).is_ok();
    egresses
        .iter()
        .find(own)
        .or_else(|| egresses.first())
        .copied()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn one_request_that_shows_the_hosts_own_address_is_told() {
        let [far, own] = [IpAddr::from([192, 0, 2, 7]), Ipv4Addr::LOCALHOST.into()];
        assert_eq!(exposed(&[far, own]), Some(own));
        assert_eq!(exposed(&[far]), Some(far));
        assert_eq!(exposed(&[]), None);
    }

    #[test]
    fn browsers_are_called_by_their_names() {
        let firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0";
        assert_eq!(name_of(firefox), "Firefox 153.0");
        let chromium = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/156.0.0.0 Safari/537.36";
        assert_eq!(name_of(chromium), "HeadlessChrome 156.0.0.0");
        assert_eq!(name_of("curl"), "curl");
    }

    #[test]
    fn what_a_browser_refuses_is_told_by_whose_fault_it_is() {
        let refused = |message: &str| {
            unanswered(&Unanswered::Refused {
                error: "unknown error".into(),
                message: message.into(),
            })
        };
        assert_eq!(refused("Error: NS_ERROR_UNKNOWN_HOST").kind, "CONNECT");
        assert_eq!(
            refused("about:neterror?e=proxyConnectFailure").kind,
            "PROXY"
        );
        assert_eq!(unanswered(&Unanswered::Gone("x".into())).kind, "CLOSED");
    }
}
