//! Browsers: a program with a fresh profile of its own that knows the lab's authority and its way in, and the session by which it is driven. A browser ends
//! with its holder, and all of its processes with it: they are one process group.

use std::{
    fmt, fs,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    pin::Pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::sleep,
};

use super::bidi::{Session, Unanswered};
use crate::{
    experiments::workload::{Way, browse::BrowserName},
    netns::process::find_program,
};

/// How often one looks whether a browser is there.
const LOOK: Duration = Duration::from_millis(20);

/// Where a program's output goes, in its profile.
const OUTPUT: &str = "output.log";

/// What is the same for every visit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    /// The certificate that signs those of the pages' hosts.
    pub(super) authority: &'a Path,
    /// How programs here reach servers.
    pub(super) way: &'a Way,
}

/// What [`Browser::session`] comes to.
type Opening<'a> = Pin<Box<dyn Future<Output = Result<Option<Session>, Unanswered>> + 'a>>;

/// A kind of browser.
pub(super) trait Browser: fmt::Debug {
    /// Makes a profile in an empty directory.
    fn prepare(&self, home: &Path, setting: Setting<'_>) -> io::Result<()>;

    /// What is run with the profile.
    fn command(&self, home: &Path) -> Command;

    /// The session with the program that runs with the profile; `None` while it is not ready for one.
    fn session<'a>(&'a self, home: &'a Path, setting: Setting<'a>) -> Opening<'a>;
}

/// The browser of a name.
pub(super) fn of(name: BrowserName) -> &'static dyn Browser {
    match name {
        BrowserName::Firefox => &Firefox,
        BrowserName::Chromium => &Chromium,
    }
}

/// A browser's program that runs.
#[derive(Debug)]
pub(super) struct Program {
    child: Child,
    /// Outlives the program itself, which may crash.
    group: Option<Pid>,
    home: PathBuf,
}

impl Program {
    /// Starts one and waits until it has a session.
    ///
    /// # Errors
    /// Why it has none.
    pub(super) async fn start(
        browser: &dyn Browser,
        home: &Path,
        setting: Setting<'_>,
    ) -> io::Result<(Self, Session)> {
        fs::create_dir_all(home)?;
        browser.prepare(home, setting)?;
        let output = fs::File::create(home.join(OUTPUT))?;
        let mut command = browser.command(home);
        command.env("HOME", home).process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let child = command.spawn().map_err(|error| {
            let program = command.as_std().get_program().to_string_lossy();
            io::Error::new(error.kind(), format!("{program}: {error}"))
        })?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let mut program = Self {
            child,
            group: id.and_then(Pid::from_raw),
            home: home.to_owned(),
        };
        loop {
            match browser.session(&program.home, setting).await {
                Ok(Some(session)) => return Ok((program, session)),
                Ok(None) => {}
                Err(why) => return Err(program.said(&why)),
            }
            if let Some(status) = program.child.try_wait()? {
                return Err(program.said(&format_args!("it ended: {status}")));
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until it ends, which it does not do unasked.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Why, and the last line that it said.
    fn said(&self, why: &dyn fmt::Display) -> io::Error {
        let output = fs::read(self.home.join(OUTPUT)).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let line = output.lines().rev().find(|line| !line.trim().is_empty());
        io::Error::other(match line {
            Some(line) => format!("{why}; its last words: {line}"),
            None => why.to_string(),
        })
    }

    fn kill(&self) {
        if let Some(group) = self.group
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            tracing::debug!(%error, "a browser's processes were not ended");
        }
    }

    /// Ends it at once: nothing of a profile is needed afterwards.
    pub(super) async fn end(mut self) {
        self.kill();
        if let Err(error) = self.child.wait().await {
            tracing::debug!(%error, "a browser's end was not seen");
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if let Err(error) = fs::remove_dir_all(&self.home) {
            tracing::debug!(%error, "a profile stays");
        }
    }
}

/// Trusts the authority in a database of NSS.
fn trust(database: &Path, authority: &Path) -> io::Result<()> {
    fs::create_dir_all(database)?;
    let store = format!("sql:{}", database.display());
    let authority = authority.to_string_lossy();
    for words in [
        &["-N", "--empty-password"][..],
        &["-A", "-n", "hoplite-lab", "-t", "C,,", "-i", &authority],
    ] {
        let mut command = std::process::Command::new("certutil");
        let output = command.args(words).args(["-d", &store]).output();
        let output =
            output.map_err(|error| io::Error::new(error.kind(), format!("certutil: {error}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("certutil: {}", said.trim())));
        }
    }
    Ok(())
}

/// Firefox, which speaks WebDriver BiDi itself.
#[derive(Clone, Copy, Debug)]
struct Firefox;

/// What is not as it is for a user: nothing is asked of anybody but by a page, times are told as they are, and an authority of the user's own does not
/// turn HTTP/3 off.
const PREFERENCES: &str = r#"
user_pref("app.normandy.enabled", false);
user_pref("app.update.auto", false);
user_pref("app.update.disabledForTesting", true);
user_pref("browser.aboutwelcome.enabled", false);
user_pref("browser.newtabpage.enabled", false);
user_pref("browser.region.network.url", "");
user_pref("browser.safebrowsing.blockedURIs.enabled", false);
user_pref("browser.safebrowsing.downloads.enabled", false);
user_pref("browser.safebrowsing.malware.enabled", false);
user_pref("browser.safebrowsing.phishing.enabled", false);
user_pref("browser.search.update", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("browser.startup.page", 0);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("dom.push.connection.enabled", false);
user_pref("extensions.blocklist.enabled", false);
user_pref("extensions.getAddons.cache.enabled", false);
user_pref("extensions.update.enabled", false);
user_pref("media.gmp-manager.updateEnabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("network.proxy.allow_bypass", false);
user_pref("network.http.http3.disable_when_third_party_roots_found", false);
user_pref("network.trr.mode", 5);
user_pref("privacy.reduceTimerPrecision", false);
user_pref("security.OCSP.enabled", 0);
user_pref("security.remote_settings.crlite_filters.enabled", false);
user_pref("services.settings.server", "data:,#none");
user_pref("toolkit.telemetry.enabled", false);
user_pref("toolkit.telemetry.server", "data:,");
"#;

impl Browser for Firefox {
    fn prepare(&self, home: &Path, setting: Setting<'_>) -> io::Result<()> {
        let preferences = format!("{PREFERENCES}{}", way_of_firefox(setting.way));
        fs::write(home.join("user.js"), preferences)?;
        trust(home, setting.authority)
    }

    fn command(&self, home: &Path) -> Command {
        let names = BrowserName::Firefox.programs();
        let there = names.iter().find(|name| find_program(name).is_some());
        let mut command = Command::new(there.unwrap_or(&names[0]));
        command.args(["--headless", "--no-remote", "--remote-debugging-port", "0"]);
        command.arg("--profile").arg(home).arg("about:blank");
        command.env("MOZ_HEADLESS", "1");
        command.env("MOZ_CRASHREPORTER_DISABLE", "1");
        // Else the server of settings cannot be changed, and is asked for beside a proxy that does not know it.
        command.env("MOZ_REMOTE_SETTINGS_DEVTOOLS", "1");
        command
    }

    fn session<'a>(&'a self, home: &'a Path, _: Setting<'a>) -> Opening<'a> {
        Box::pin(async move {
            let told = fs::read(home.join("WebDriverBiDiServer.json"));
            let Some(address) = told.ok().and_then(|told| address_of_firefox(&told)) else {
                return Ok(None);
            };
            let mut session = Session::connect(address, "/session").await?;
            let capabilities = json!({ "capabilities": {} });
            session
                .call("session.new", &capabilities, &mut |_, _| {})
                .await?;
            Ok(Some(session))
        })
    }
}

/// `WebDriverBiDiServer.json`; `None` while it is not written whole.
fn address_of_firefox(told: &[u8]) -> Option<SocketAddr> {
    let told: Value = serde_json::from_slice(told).ok()?;
    let port = u16::try_from(told.get("ws_port")?.as_u64()?).ok()?;
    // One that leaves names to a proxy tells its own as a name.
    let host = match told.get("ws_host")?.as_str()? {
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        address => address.parse().ok()?,
    };
    Some(SocketAddr::new(host, port))
}

/// Names go to a proxy as they are, and nothing beside it.
fn way_of_firefox(way: &Way) -> String {
    let lines: Vec<(&str, Value)> = match way {
        Way::Direct => vec![("network.proxy.type", json!(0))],
        Way::Socks { address, .. } => vec![
            ("network.proxy.type", json!(1)),
            ("network.proxy.socks", json!(address.ip())),
            ("network.proxy.socks_port", json!(address.port())),
            ("network.proxy.socks_version", json!(5)),
            ("network.proxy.socks_remote_dns", json!(true)),
            ("network.proxy.socks5_remote_dns", json!(true)),
            ("network.proxy.failover_direct", json!(false)),
        ],
        Way::Http { address } => vec![
            ("network.proxy.type", json!(1)),
            ("network.proxy.http", json!(address.ip())),
            ("network.proxy.http_port", json!(address.port())),
            ("network.proxy.ssl", json!(address.ip())),
            ("network.proxy.ssl_port", json!(address.port())),
            ("network.proxy.failover_direct", json!(false)),
        ],
    };
    let line = |(name, value): (&str, Value)| format!("user_pref(\"{name}\", {value});\n");
    lines.into_iter().map(line).collect()
}

/// Chromium, by chromedriver.
#[derive(Clone, Copy, Debug)]
struct Chromium;

/// What chromedriver's answer may weigh, in bytes.
const ANSWER: usize = 1 << 20;

impl Browser for Chromium {
    fn prepare(&self, home: &Path, setting: Setting<'_>) -> io::Result<()> {
        trust(&home.join(".pki/nssdb"), setting.authority)
    }

    fn command(&self, _: &Path) -> Command {
        let mut command = Command::new(BrowserName::Chromium.programs()[0]);
        command.arg("--port=0");
        command
    }

    fn session<'a>(&'a self, home: &'a Path, setting: Setting<'a>) -> Opening<'a> {
        Box::pin(async move {
            let output = fs::read(home.join(OUTPUT)).unwrap_or_default();
            let Some(port) = port_of_chromedriver(&String::from_utf8_lossy(&output)) else {
                return Ok(None);
            };
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let mut arguments = vec![
                "--headless=new".to_owned(),
                "--no-first-run".to_owned(),
                "--disable-background-networking".to_owned(),
                "--disable-component-update".to_owned(),
                "--disable-sync".to_owned(),
                // Its own sandbox cannot be made by root, nor in a user namespace within another.
                "--no-sandbox".to_owned(),
                format!("--user-data-dir={}", home.join("data").display()),
            ];
            arguments.extend(way_of_chromium(setting.way));
            let wanted = json!({ "capabilities": { "alwaysMatch": {
                "webSocketUrl": true,
                "goog:chromeOptions": { "args": arguments },
            }}});
            let answer = new_session(address, &wanted).await;
            let answer = answer.map_err(|error| Unanswered::Gone(error.to_string()))?;
            let url = answer.pointer("/value/capabilities/webSocketUrl");
            let path = url
                .and_then(Value::as_str)
                .and_then(path_of)
                .ok_or_else(|| {
                    Unanswered::Gone(format!("chromedriver makes no session: {answer}"))
                })?;
            Session::connect(address, &path).await.map(Some)
        })
    }
}

/// `ChromeDriver was started successfully on port 41234.`
fn port_of_chromedriver(output: &str) -> Option<u16> {
    let (_, rest) = output.split_once("started successfully on port ")?;
    let (port, _) = rest.split_once('.')?;
    port.parse().ok()
}

/// Of `ws://localhost:41234/session/…`.
fn path_of(url: &str) -> Option<String> {
    let (_, path) = url.strip_prefix("ws://")?.split_once('/')?;
    Some(format!("/{path}"))
}

/// The same for Chromium, which leaves names to a SOCKS5 proxy by itself; no name but the proxy's is resolved.
fn way_of_chromium(way: &Way) -> Vec<String> {
    let proxy = match way {
        Way::Direct => return vec!["--no-proxy-server".into()],
        Way::Socks { address, .. } => format!("socks5://{address}"),
        Way::Http { address } => format!("http://{address}"),
    };
    vec![
        format!("--proxy-server={proxy}"),
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1".into(),
    ]
}

/// WebDriver's `New Session` (w3.org/TR/webdriver2).
async fn new_session(address: SocketAddr, wanted: &Value) -> io::Result<Value> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the control port of a browser that this process has started"
    )]
    let stream = TcpStream::connect(address).await?;
    let (mut requests, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let driving = tokio::spawn(connection);
    let request = http::Request::post("/session")
        .header("host", address.to_string())
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(wanted.to_string())))
        .map_err(io::Error::other)?;
    let answer = requests.send_request(request).await;
    let body = Limited::new(answer.map_err(io::Error::other)?.into_body(), ANSWER);
    let body = body.collect().await.map_err(io::Error::other)?;
    driving.abort();
    Ok(serde_json::from_slice(&body.to_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socks() -> Way {
        Way::Socks {
            address: ([127, 0, 0, 1], 1080).into(),
            udp: true,
        }
    }

    #[test]
    fn names_go_to_a_socks_proxy_unresolved_and_nothing_goes_beside_it() {
        let lines = way_of_firefox(&socks());
        assert!(lines.contains("user_pref(\"network.proxy.socks\", \"127.0.0.1\");\n"));
        assert!(lines.contains("user_pref(\"network.proxy.socks_remote_dns\", true);\n"));
        assert!(lines.contains("user_pref(\"network.proxy.failover_direct\", false);\n"));
        let words = way_of_chromium(&socks());
        assert_eq!(words[0], "--proxy-server=socks5://127.0.0.1:1080");
        assert!(words[1].contains("MAP * ~NOTFOUND"));
    }

    #[test]
    fn without_a_way_in_no_proxy_of_the_environment_is_taken() {
        assert_eq!(
            way_of_firefox(&Way::Direct),
            "user_pref(\"network.proxy.type\", 0);\n"
        );
        assert_eq!(way_of_chromium(&Way::Direct), ["--no-proxy-server"]);
    }

    #[test]
    fn where_a_browser_listens_is_read_as_soon_as_it_is_told() {
        let told = br#"{"ws_host":"127.0.0.1","ws_port":40123}"#;
        assert_eq!(
            address_of_firefox(told),
            Some(([127, 0, 0, 1], 40_123).into())
        );
        let named = br#"{"ws_host":"localhost","ws_port":40123}"#;
        assert_eq!(address_of_firefox(named), address_of_firefox(told));
        assert_eq!(address_of_firefox(&told[..20]), None);
        let told = "ChromeDriver was started successfully on port 41234.\n";
        assert_eq!(port_of_chromedriver(told), Some(41_234));
        assert_eq!(port_of_chromedriver(told.get(..50).expect("ASCII")), None);
        assert_eq!(
            path_of("ws://localhost:41234/session/ab"),
            Some("/session/ab".into())
        );
    }
}
