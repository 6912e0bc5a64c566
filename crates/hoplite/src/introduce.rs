//! How relays and clients come to know each other without anybody copying keys: `hoplite init` writes a relay's file, its identity and a token, and prints
//! the URL that a client wants ([`RelayUrl`]); `hoplite import` takes such URLs into a client's file. On a terminal `init` asks for what no flag says (`ask`),
//! for a client's file too. Nothing is written that `hoplite check` would refuse.

mod ask;

use std::{
    fs,
    io::{self, IsTerminal, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use clap::{Args, ValueEnum};
use hoplite_crypto::{RelayUrl, Token, is_relay_name};
use hoplite_wire::Target;
use qrcode::{EcLevel, QrCode, render::unicode::Dense1x2};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;
use zeroize::Zeroizing;

use self::ask::{Asked, Suggested};
use crate::{
    config::{Document, client, relay},
    directory::now,
    identity::{self, Files, Stored},
    say::{self, Failure},
};

/// The random bytes of a token that is made.
const TOKEN_BYTES: usize = 24;
/// The relays that a path has at most.
const LONGEST_PATH: usize = 4;
/// What a client's file is called if nobody says otherwise.
const CLIENT_FILE: &str = "client.toml";
/// A relay's file, in its directory.
const RELAY_FILE: &str = "relay.toml";
/// The most that is read of the standard input, in bytes.
const LONGEST_INPUT: u64 = 64 << 10;

/// The options of `hoplite init`. On a terminal it asks for what is needed and not given.
#[derive(Clone, Debug, Args)]
pub(crate) struct Init {
    /// The relay's host and port as clients reach it; its port is where it listens, unless --listen says otherwise. A port that is left out is 443.
    #[arg(value_name = "HOST[:PORT]")]
    address: Option<String>,
    /// The directory for relay.toml and the identity; it is made if absent.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What the relay is called: letters, digits, '-', '_' and '.'; the first part of the host by default.
    #[arg(long)]
    name: Option<String>,
    /// What the relay does. Clients need one that is the first of their path and one that is the last; one operator runs one of them. Both by
    /// default.
    #[arg(long, value_enum)]
    role: Option<Does>,
    /// Where the relay listens, UDP and TCP alike; may be given several times.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// An ingress forwards to these relays ("host:port"); may be given several times.
    #[arg(long, value_name = "HOST:PORT")]
    next: Vec<String>,
    /// Carry circuits of cells beside tunnels: anybody can build them, and with the role egress reach targets.
    #[arg(long)]
    onion: bool,
    /// Draw the URL as a QR code too, on stderr.
    #[arg(long)]
    qr: bool,
}

/// What a relay does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Does {
    /// Forward to other relays.
    Ingress,
    /// Connect to targets.
    Egress,
    /// Both.
    Both,
}

/// The options of `hoplite import`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Import {
    /// The relays' URLs (hoplite://…), in the order of the path, the first hop first; `-` reads them from the standard input.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    /// The client's file. One that is not there is made, with a path over these relays; to one that is there the relays are added.
    #[arg(long, value_name = "FILE", default_value = CLIENT_FILE)]
    config: PathBuf,
}

impl Init {
    /// Whether anything is said that only a relay has.
    fn is_of_a_relay(&self) -> bool {
        let texts = self.address.is_some() || self.name.is_some() || self.out.is_some();
        let lists = !self.listen.is_empty() || !self.next.is_empty();
        texts || lists || self.role.is_some() || self.onion || self.qr
    }

    fn does(&self) -> Does {
        self.role.unwrap_or(Does::Both)
    }
}

/// Runs `hoplite init`.
pub(crate) fn init(options: Init, json: bool) -> Result<(), Failure> {
    let is_whole = options.address.is_some() && options.out.is_some();
    if is_whole || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return begin_relay(&options, json);
    }
    let suggested = Suggested {
        directory: if rustix::process::geteuid().is_root() {
            "/etc/hoplite"
        } else {
            "hoplite-relay"
        },
        file: CLIENT_FILE,
    };
    let mut input = io::stdin().lock().take(LONGEST_INPUT);
    match ask::all(options, &suggested, &mut input, &mut say::questions())? {
        Asked::Relay(options) => begin_relay(&options, json),
        Asked::Client(urls, file) => take(&urls, &file, json),
    }
}

fn begin_relay(options: &Init, json: bool) -> Result<(), Failure> {
    let (Some(address), Some(out)) = (&options.address, &options.out) else {
        let given = [options.address.is_some(), options.out.is_some()];
        let missing = ["<HOST[:PORT]>", "--out <DIR>"].into_iter().zip(given);
        let missing: Vec<_> = missing
            .filter(|(_, given)| !given)
            .map(|(name, _)| name)
            .collect();
        let why = "the following required arguments were not provided";
        return Err(Failure::usage(format!("{why}: {}", missing.join(" "))));
    };
    let address = with_port(address).map_err(Failure::usage)?;
    let name = match &options.name {
        Some(name) => name.clone(),
        None => first_part(&address),
    };
    if !is_relay_name(&name) {
        let why = format!("{name:?} is no name of a relay");
        return Err(Failure::usage(format!(
            "{why}: give one of letters, digits, '-', '_' and '.' with --name"
        )));
    }
    let file = out.join(RELAY_FILE);
    if file.exists() {
        let doing = format!("writing {}", file.display());
        let remedy = "choose another directory with --out, or edit the file that is there";
        return Err(Failure::new(doing, "there is one already", remedy));
    }
    let token = new_token()?;
    let text = relay_file(options, &name, &address, &token);
    // Before anything is written.
    relay::read(&Document::parse(&file, text.as_str().to_owned())?)?;
    let url = introduced(options, &out.join("identity"), name, address, token)?;
    identity::write(&file, text.as_bytes(), 0o600)?;
    let url = Zeroizing::new(url.to_string());
    if json {
        return say::json(&json!({"config": file, "url": url.as_str()}));
    }
    say::remark(format!(
        "hoplite: the relay's file is {}; start it with 'hoplite relay --config {}'.\n\
         Whoever has this URL may use the relay, with 'hoplite import URL':",
        file.display(),
        file.display()
    ));
    if options.qr {
        say::remark(drawn(url.as_str())?.as_str());
    }
    say::answer(url.as_str())
}

/// A QR code in half blocks, dark on light whatever the terminal's colours are: inverted ones are read by some cameras alone.
fn drawn(url: &str) -> Result<Zeroizing<String>, Failure> {
    let code = QrCode::with_error_correction_level(url, EcLevel::L)
        .map_err(|error| Failure::new("drawing the URL", error, "hand it over as a text"))?;
    let drawn = Zeroizing::new(code.render::<Dense1x2>().build());
    let lines = drawn
        .lines()
        .map(|line| format!("\x1b[30;107m{line}\x1b[0m\n"));
    Ok(Zeroizing::new(lines.collect()))
}

/// Makes the identity, or takes that which is there, and says what clients need of it.
fn introduced(
    options: &Init,
    directory: &Path,
    name: String,
    address: Target,
    token: Token,
) -> Result<RelayUrl, Failure> {
    let files = Files::within(directory);
    let files = if files.exist() {
        files
    } else {
        let new = identity::make(&[address.host.to_string()])?;
        identity::store(directory, &new, false)?
    };
    let onion = Stored::read_or_make(directory, now())?.public()?;
    Ok(RelayUrl {
        name,
        address,
        pin: Some(files.read()?.pin()),
        onion: options.onion.then_some(onion),
        ingress: options.does() != Does::Egress,
        egress: options.does() != Does::Ingress,
        token: Some(token),
    })
}

fn relay_file(options: &Init, name: &str, address: &Target, token: &Token) -> Zeroizing<String> {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let list = |texts: Vec<String>| {
        let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
        texts.join(", ")
    };
    let listen = match options.listen.as_slice() {
        [] => vec![format!("[::]:{}", address.port)],
        given => given.iter().map(ToString::to_string).collect(),
    };
    let roles = match options.does() {
        Does::Ingress => vec!["ingress"],
        Does::Egress => vec!["egress"],
        Does::Both => vec!["ingress", "egress"],
    };
    let roles = roles.into_iter().map(str::to_owned).collect();
    let mut text = Zeroizing::new(format!(
        "# A relay of Hoplite: `hoplite relay --config` this file. All other keys, with their meaning and their defaults: examples/relay.toml.\n\
         name = {}\nlisten = [{}]\nroles = [{}]\nidentity = \"identity\"\n\n\
         # Who may use it. SIGHUP reads tokens again; one entry for each group that may have to be shut out alone.\n\
         [[auth.token]]\nname = \"first\"\ntoken = {}\n\n\
         [egress]\n# Who sends spam would have this address blocked elsewhere.\ndeny = [\"*:25\"]\n",
        quoted(name),
        list(listen),
        list(roles),
        quoted(token.reveal()),
    ));
    if !options.next.is_empty() {
        text.push_str(&format!(
            "\n[ingress]\nrelays = [{}]\n",
            list(options.next.clone())
        ));
    }
    if options.onion {
        text.push_str("\n[onion]\nenabled = true\nopen = true\n");
    }
    text
}

fn with_port(text: &str) -> Result<Target, String> {
    let whole = match text.parse::<std::net::Ipv6Addr>() {
        Ok(address) => format!("[{address}]:443"),
        Err(_)
            if text
                .rsplit_once(':')
                .is_none_or(|(_, port)| port.ends_with(']')) =>
        {
            format!("{text}:443")
        }
        Err(_) => text.to_owned(),
    };
    whole
        .parse()
        .map_err(|error| format!("{text:?} is no host and port: {error}"))
}

/// "amber" of "amber.example.org"; an address has no parts.
fn first_part(address: &Target) -> String {
    let host = address.host.to_string();
    let is_address = host.starts_with('[') || host.parse::<std::net::IpAddr>().is_ok();
    match host.split_once('.') {
        Some((first, _)) if !is_address => first.to_owned(),
        _ if is_address => "relay".to_owned(),
        _ => host,
    }
}

fn new_token() -> Result<Token, Failure> {
    let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
    let filled = SystemRandom::new().fill(bytes.as_mut_slice());
    filled.map_err(|error| Failure::new("making a token", error, "please report this"))?;
    Ok(Token::new(BASE64_URL_SAFE_NO_PAD.encode(bytes.as_slice())))
}

/// Runs `hoplite import`.
pub(crate) fn import(options: &Import, json: bool) -> Result<(), Failure> {
    take(&read_urls(&options.urls)?, &options.config, json)
}

/// Takes relays into a client's file, which is made if there is none.
fn take(urls: &[RelayUrl], file: &Path, json: bool) -> Result<(), Failure> {
    let (before, known) = if file.exists() {
        let known = client::load(file)?;
        let text = fs::read_to_string(file).map_err(|error| Failure::no_config(file, &error))?;
        (Some(Zeroizing::new(text)), known.config.relay)
    } else {
        (None, Vec::new())
    };
    let made = before.is_none();
    let mut new = Vec::new();
    for url in urls {
        match known.iter().find(|relay| relay.name == url.name) {
            Some(relay) if relay.address == url.address && relay.pin == url.pin => {}
            Some(_) => return Err(taken(file, &url.name)),
            None => new.push(url),
        }
    }
    let mut text = match before {
        Some(text) => text,
        None => Zeroizing::new(heading(urls)),
    };
    for url in &new {
        text.push_str(&stanza(url));
    }
    // Before anything is written.
    client::read(&Document::parse(file, text.as_str().to_owned())?)?;
    if !new.is_empty() {
        identity::write(file, text.as_bytes(), mode(file))?;
    }
    tell(file, made, &new, json)
}

fn tell(file: &Path, made: bool, new: &[&RelayUrl], json: bool) -> Result<(), Failure> {
    let names: Vec<_> = new.iter().map(|url| url.name.as_str()).collect();
    if json {
        return say::json(&json!({"config": file, "added": names}));
    }
    let file = file.display();
    let said = match (names.is_empty(), made) {
        (true, _) => format!("hoplite: {file} has these relays already"),
        (false, true) => format!(
            "hoplite: {file} is written; try it with 'hoplite client --config {file}', or 'hoplite up --config {file}' for the whole device"
        ),
        (false, false) => format!(
            "hoplite: added to {file}; to go over them, write their names into `path` there, the first hop first"
        ),
    };
    say::remark(said);
    names.iter().try_for_each(say::answer)
}

fn read_urls(given: &[String]) -> Result<Vec<RelayUrl>, Failure> {
    let mut texts = Zeroizing::new(Vec::new());
    for text in given {
        if text == "-" {
            if io::stdin().is_terminal() {
                say::remark("hoplite: the relays' URLs, one on each line, then Ctrl-D:");
            }
            let mut read = Zeroizing::new(String::new());
            let input = io::stdin()
                .lock()
                .take(LONGEST_INPUT)
                .read_to_string(&mut read);
            input.map_err(|error| {
                Failure::new(
                    "reading URLs from the standard input",
                    error,
                    "check what is piped into it",
                )
            })?;
            texts.extend(read.split_whitespace().map(str::to_owned));
        } else {
            texts.push(text.trim().to_owned());
        }
    }
    let mut urls: Vec<RelayUrl> = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        let url: RelayUrl = text.parse().map_err(|error| {
            // Not the URL itself: it has a token.
            Failure::usage(format!("URL {} is no relay's: {error}", number + 1))
        })?;
        if urls.iter().any(|other| other.name == url.name) {
            let why = format!("two of the URLs are of a relay {:?}", url.name);
            return Err(Failure::usage(why));
        }
        urls.push(url);
    }
    if urls.is_empty() {
        return Err(Failure::usage("there is no URL on the standard input"));
    }
    Ok(urls)
}

fn taken(config: &Path, name: &str) -> Failure {
    let doing = format!("adding a relay to {}", config.display());
    let why = format!(
        "there is another relay that is called {name:?}, at another address or with another key"
    );
    let remedy = "if it is the same relay with a new key, remove its [[relay]] first; else ask its operator for another name";
    Failure::new(doing, why, remedy)
}

/// Of a file that is new: a path over the relays, as far as a path goes.
fn heading(urls: &[RelayUrl]) -> String {
    let names = urls
        .iter()
        .take(LONGEST_PATH)
        .map(|url| toml::Value::from(url.name.as_str()).to_string());
    let names: Vec<_> = names.collect();
    format!(
        "# A client of Hoplite. All other keys, with their meaning and their defaults: examples/client.toml.\n\n\
         # The first relay sees you, the last one your targets: let them be of different operators.\npath = [{}]\n",
        names.join(", ")
    )
}

fn stanza(url: &RelayUrl) -> Zeroizing<String> {
    let mut text = Zeroizing::new("\n[[relay]]\n".to_owned());
    let mut line = |key: &str, value: Option<String>| {
        if let Some(value) = value.map(Zeroizing::new) {
            text.push_str(&format!("{key} = {}\n", toml::Value::from(value.as_str())));
        }
    };
    line("name", Some(url.name.clone()));
    line("address", Some(url.address.to_string()));
    line("pin", url.pin.map(|pin| pin.to_string()));
    line("onion", url.onion.as_ref().map(ToString::to_string));
    line(
        "token",
        url.token.as_ref().map(|token| token.reveal().to_owned()),
    );
    match (url.ingress, url.egress) {
        (true, false) => text.push_str("roles = [\"ingress\"]\n"),
        (false, true) => text.push_str("roles = [\"egress\"]\n"),
        _ => {}
    }
    text
}

/// As a file that is there has it; else nobody but its owner reads the tokens.
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).map_or(0o600, |there| there.permissions().mode() & 0o777)
}
