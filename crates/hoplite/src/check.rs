//! `hoplite check`: says what a configuration file means, warns, and answers by its exit code.
//! For people before they start a relay or a client, and for deployment scripts.

use std::path::Path;

use hoplite_mediator::Listen;
use serde_json::json;

use crate::{
    config::{self, Kind, client::Client, relay::Relay},
    errors::Failure,
    say,
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
        Kind::Relay => relay(&config::relay::read(&document)?),
        Kind::Client => client(&config::client::read(&document)?),
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
    lines.push(match config.auth.token.len() {
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

fn client(client: &Client) -> Meaning {
    let config = &client.config;
    let mut lines = vec![match config.path.len() {
        _ if config.is_direct() => "takes no relay at all: nothing is hidden".to_owned(),
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
    for (what, listen) in [
        ("SOCKS5", config.socks.listen),
        ("HTTP proxy", config.http.listen),
    ] {
        if let Listen::At(address) = listen {
            lines.push(format!("{what} on {address}"));
        }
    }
    if !config.is_direct() {
        lines.extend(recognition(client));
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

fn list<T: ToString>(items: &[T]) -> String {
    items
        .iter()
        .map(T::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
