//! Whether a network wants a login first: one request in the clear, for a page of which it is known what stands there. What answers otherwise is the
//! network. It runs in the portal's control group, as nobody, since the network may answer what it likes.

use std::time::Duration;

use clap::Args;
use hoplite_overlay::{Direct, Overlay, Terms};
use hoplite_wire::Target;
use http::{HeaderValue, StatusCode, Uri, header};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::{
    config::client::takeover::NOBODY,
    fetch,
    process::current_thread_runtime,
    say,
    say::Failure,
    up::{UnixSockets, confine},
};

/// What `hoplite portal` calls it by.
pub(crate) const PROBE: &str = "__portal-probe";

/// What Firefox asks for to the same end: a network learns no more by it than that.
pub(super) const URL: &str = "http://detectportal.firefox.com/success.txt";

/// What the page begins with where nobody stands in between. Others answer 204 and nothing.
const SUCCESS: &[u8] = b"success";

/// How long the network may take for all of it.
const PATIENCE: Duration = Duration::from_secs(8);

/// Bytes of a page.
const MAX_PAGE: usize = 16 * 1024;

/// What [`PROBE`] is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    url: String,
}

/// What it found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Found {
    /// The page, as it is.
    Open,
    /// Something else: the network wants a login, at this host if it said so.
    Login(Option<String>),
    /// No answer, and why.
    Silence(String),
}

/// Asks as nobody, and prints what was found as a line of JSON. To be called while there is one thread.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    // It has nothing to hand on, and names are asked for as the system does it: of a process that listens at such a socket, often.
    confine(NOBODY, UnixSockets::Opens).map_err(|error| {
        Failure::new(
            "giving up all rights",
            error,
            "run 'hoplite portal' as root",
        )
    })?;
    let found = current_thread_runtime()?.block_on(async {
        let asked = timeout(PATIENCE, ask(&options.url)).await;
        match asked {
            Ok(Ok(found)) => found,
            Ok(Err(why)) => Found::Silence(why),
            Err(_) => Found::Silence(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    });
    say::json(&found)
}

/// Where it is, and what is asked for there.
pub(super) fn place(url: &str) -> Option<(Target, Uri)> {
    fetch::place(url, "http", 80)
}

async fn ask(url: &str) -> Result<Found, String> {
    let (target, uri) = place(url).ok_or("it is no http:// address with a host")?;
    let terms = Terms::default().within(PATIENCE);
    let stream = Direct::new().open_stream(&target, &terms).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let answer = fetch::exchange(stream, &uri, MAX_PAGE).await;
    let answer = answer.map_err(|error| format!("the answer is no HTTP ({error})"))?;
    let location = answer.fields.get(header::LOCATION);
    Ok(judge(
        answer.status,
        location,
        &answer.body.unwrap_or_default(),
    ))
}

/// What an answer means. Of where it leads only the host is told, if it is one: the rest is the network's to choose.
fn judge(status: StatusCode, location: Option<&HeaderValue>, body: &[u8]) -> Found {
    let is_page = status == StatusCode::OK && body.trim_ascii_start().starts_with(SUCCESS);
    if status == StatusCode::NO_CONTENT || is_page {
        return Found::Open;
    }
    let leads = location.and_then(|location| location.to_str().ok()?.parse::<Uri>().ok());
    let target = leads.and_then(|uri| format!("{}:80", uri.host()?).parse::<Target>().ok());
    Found::Login(target.map(|target| target.host.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, location: &str, body: &str) -> Found {
        let status = StatusCode::from_u16(status).expect("a status");
        let location = HeaderValue::from_bytes(location.as_bytes()).expect("a value");
        judge(
            status,
            Some(&location).filter(|it| !it.is_empty()),
            body.as_bytes(),
        )
    }

    #[test]
    fn what_is_not_the_page_is_a_login() {
        assert_eq!(judged(200, "", "success\n"), Found::Open);
        assert_eq!(judged(204, "", ""), Found::Open);
        for (status, body) in [
            (200, "<html>success"),
            (200, ""),
            (302, ""),
            (511, ""),
            (404, "success"),
        ] {
            assert_eq!(judged(status, "", body), Found::Login(None), "{status}");
        }
    }

    #[test]
    fn of_where_a_login_is_only_a_host_is_told() {
        for (location, host) in [
            ("http://login.example/in?a=b", Some("login.example")),
            ("https://192.0.2.1:8443/", Some("192.0.2.1")),
            ("/in", None),
            ("http://a$(reboot)/", None),
            ("http://\"; reboot/", None),
            ("nonsense of a network", None),
        ] {
            let found = judged(302, location, "");
            assert_eq!(found, Found::Login(host.map(str::to_owned)), "{location}");
        }
    }
}
