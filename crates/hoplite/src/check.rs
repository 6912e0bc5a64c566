//! `hoplite check`: says what a configuration file means, warns, and answers by its exit code.
//! For people before they start a relay or a client, and for deployment scripts.

use std::path::Path;

use hoplite_channel::How;
use hoplite_directory::{Trust, tor};
use hoplite_mediator::Listen;
use hoplite_relay::config::{Egress, Tor};
use serde_json::json;

use crate::{
    config::{self, Document, Kind, client::Client, relay::Relay},
    say,
    say::Failure,
};

/// What a file means, line by line, and what is odd about it.
struct Meaning {
    kind: &'static str,
    lines: Vec<String>,
    warnings: Vec<String>,
}

/// Checks the file at `path`.
pub(crate) fn run(path: &Path, json: bool) -> Result<(), Failure> {
    let document = config::open(path)?;
    let meaning = match config::kind(&document)? {
        Kind::Relay => {
            let mut checked = config::relay::read(&document)?;
            let missing = missing(&document, &checked.config.egress);
            checked.warnings.extend(missing);
            relay(&checked)
        }
        Kind::Client => client(&config::client::read(&document)?),
        Kind::Directory => directory(&config::directory::read(&document)?),
        Kind::Issuer => issuer(&config::issuer::read(&document)?),
    };
    if json {
        let kind = meaning.kind;
        return say::json(
            &json!({"ok": true, "kind": kind, "means": meaning.lines, "warnings": meaning.warnings}),
        );
    }
    for warning in &meaning.warnings {
        say::remark(format!("hoplite: warning: {warning}"));
    }
    say::answer(format!(
        "{}: a {} configuration, and it is right",
        path.display(),
        meaning.kind
    ))?;
    meaning
        .lines
        .iter()
        .try_for_each(|line| say::answer(format!("  {line}")))
}

/// Which pools have addresses that are not this host's: no mistake in the file, which may be for another host.
fn missing(document: &Document, egress: &Egress) -> Vec<String> {
    let tell = |number: usize, why: String, remedy: &str| {
        let key = format!("egress.pool[{number}].addresses");
        let told = document.complain(&key, why, remedy);
        format!("{}: {}", told.why, told.remedy)
    };
    if egress.pool.is_empty() {
        return Vec::new();
    }
    let missing = match egress.missing() {
        Ok(missing) => missing,
        Err(error) => {
            let why = format!("whether this host has them, the kernel does not say: {error}");
            return vec![tell(0, why, "allow AF_NETLINK")];
        }
    };
    let told = missing.into_iter().map(|(number, net)| {
        let why =
            format!("{net} does not lead to this host, so that flows from there get no answer");
        let family = if net.addr().is_ipv6() { "ip -6" } else { "ip" };
        let remedy = format!("have it routed here, then '{family} route add local {net} dev lo'");
        tell(number, why, &remedy)
    });
    told.collect()
}

/// What a relay does for circuits.
fn served(config: &hoplite_relay::Config) -> String {
    let what = match (config.is_ingress(), config.is_egress()) {
        (true, true) => "extends them to other relays, and streams to targets",
        (true, false) => "extends them to other relays",
        (false, _) => "is their last relay, and opens streams to targets",
    };
    format!("onion: serves circuits to everybody; {what}")
}

fn relay(relay: &Relay) -> Meaning {
    let config = &relay.config;
    let mut lines = vec![format!(
        "calls itself {:?} and listens on {}, UDP and TCP",
        config.name,
        list(&config.listen)
    )];
    let forwards = config.ingress.relays.len();
    if config.is_ingress() && forwards > 0 {
        lines.push(format!("ingress: forwards to {forwards} other relay(s)"));
    }
    if config.is_egress() {
        lines.push("egress: connects to public targets and resolves their names".into());
    }
    lines.extend((!config.egress.allow.is_empty()).then(|| {
        format!(
            "also to {} kind(s) of special target",
            config.egress.allow.len()
        )
    }));
    let pools = config.egress.pool.len();
    lines.extend((pools > 0).then(|| {
        let renew = config.egress.renew.as_secs_f64();
        format!("leaves by {pools} pool(s) of addresses, by another of them after {renew} s")
    }));
    lines.extend(config.onion.enabled.then(|| served(config)));
    lines.extend(config.onion.tor.as_ref().map(|tor| {
        let authorities = tor.authorities.len();
        format!(
            "tells {authorities} authorities of Tor's network of itself, over HTTP in the clear"
        )
    }));
    let caches = config.onion.tor.as_ref().is_some_and(Tor::caches);
    lines.extend(caches.then(|| {
        "is a directory cache of Tor's network: fetches what its authorities publish, and gives it over circuits".into()
    }));
    lines.push(match config.auth.token.len() {
        0 if config.auth.is_closed() => "serves whoever has private tokens".into(),
        0 => "serves everybody, without a token".into(),
        n => format!("serves the holders of {n} token(s)"),
    });
    lines.push(match &config.tls {
        Some(tls) => format!("shows the certificate in {}", tls.cert.display()),
        None => format!(
            "shows its own certificate, pinned, from {}",
            config.identity.display()
        ),
    });
    lines.extend(
        config
            .metrics
            .listen
            .map(|address| format!("answers http://{address}/metrics")),
    );
    Meaning {
        kind: "relay",
        lines,
        warnings: relay.warnings.clone(),
    }
}

fn issuer(config: &config::issuer::Config) -> Meaning {
    let all = config.account.iter();
    let tokens: u64 = all.map(|account| u64::from(account.tokens_per_day)).sum();
    let mut lines = vec![
        format!("answers https://{}", config.listen),
        format!(
            "gives {} account(s) {tokens} tokens a day together",
            config.account.len()
        ),
    ];
    lines.extend(config.oidc.as_ref().map(|oidc| {
        let (issuer, audience) = (&oidc.issuer, &oidc.audience);
        let tokens = oidc.tokens_per_day;
        format!("gives whoever has a bearer of {issuer} for {audience} {tokens} tokens a day")
    }));
    lines.push(format!(
        "takes another key every {} s",
        config.epoch.as_secs()
    ));
    Meaning {
        kind: "issuer",
        lines,
        warnings: Vec::new(),
    }
}

fn client(client: &Client) -> Meaning {
    let config = &client.config;
    let mut lines = vec![match config.path.len() {
        _ if config.is_direct() => "takes no relay at all: nothing is hidden".to_owned(),
        0 if config.directory.is_some() => format!(
            "takes {} relays, chosen from the list of the directory",
            config.length()
        ),
        0 => format!(
            "takes {} of {} relays, chosen when it starts",
            config.length(),
            config.relay.len()
        ),
        _ => format!(
            "takes {} relay(s): {}",
            config.length(),
            config.path.join(" → ")
        ),
    }];
    lines.extend(config.route.iter().map(|route| {
        let domains: Vec<_> = route.domains.iter().map(|it| it.name().as_str()).collect();
        let path = match route.hops {
            Some(hops) => format!("{hops} relay(s), chosen when it starts"),
            None => route.path.join(" → "),
        };
        format!("names of {} take another path: {path}", domains.join(", "))
    }));
    for (what, listen) in [
        ("SOCKS5", config.socks.listen),
        ("HTTP proxy", config.http.listen),
    ] {
        if let Listen::At(address) = listen {
            lines.push(format!("{what} on {address}"));
        }
    }
    match &config.directory {
        _ if config.is_direct() => {}
        None if config.is_onion() => lines.extend(circuits(client)),
        Some(directory) => lines.push(match &directory.tor {
            Some(tor) => consensus(&tor.trust(directory.skew)),
            None => signed(&directory.trust()),
        }),
        None => lines.extend(recognition(client)),
    }
    if !config.service.is_empty() {
        lines.push(format!("serves {} onion service(s)", config.service.len()));
    }
    Meaning {
        kind: "client",
        lines,
        warnings: client.warnings.clone(),
    }
}

/// How relays are known, and what is shown to them.
fn recognition(client: &Client) -> [String; 2] {
    let config = &client.config;
    let pinned = config
        .relay
        .iter()
        .filter(|relay| relay.pin.is_some())
        .count();
    let tokens = client
        .relays
        .iter()
        .filter(|relay| relay.token.is_some())
        .count();
    [
        format!(
            "{pinned} relay(s) known by pin, {} by a public authority",
            config.relay.len() - pinned
        ),
        format!(
            "shows a token to {tokens} of {} relays",
            client.relays.len()
        ),
    ]
}

/// What circuits mean for programs.
fn circuits(client: &Client) -> [String; 2] {
    let over = match client.config.onion.channel {
        How::Raced => "QUIC or TLS, whichever is there first",
        How::Quic => "QUIC",
        How::Tls => "TLS",
    };
    [
        format!("by circuits of Tor's cells over {over}; relays are known by their onion keys"),
        "carries TCP and names, and UDP where the last relay does".to_owned(),
    ]
}

fn signed(trust: &Trust) -> String {
    let (needed, known) = (trust.threshold, trust.authorities.len());
    format!("believes a list that {needed} of {known} authorities have signed")
}

fn consensus(trust: &tor::Trust) -> String {
    let (needed, known) = (trust.needed(), trust.authorities.len());
    format!("believes a consensus that {needed} of {known} authorities of Tor's have signed")
}

fn directory(config: &config::directory::Config) -> Meaning {
    let (interval, voting) = (config.interval.as_secs(), config.voting.as_secs());
    let kept = config.store.display();
    let lines = vec![
        format!("answers http://{}/hoplite/list", config.listen),
        signed(&config.trust()),
        format!("a list every {interval} s, votes {} s before", 2 * voting),
        format!(
            "knows at most {} relays, kept in {kept}",
            config.admission.relays
        ),
    ];
    let private = config.admission.private;
    let warning =
        "admission.private lists relays that the Internet does not reach: for laboratories";
    Meaning {
        kind: "directory authority's",
        lines,
        warnings: private.then(|| warning.to_owned()).into_iter().collect(),
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    items
        .iter()
        .map(T::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
