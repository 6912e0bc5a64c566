//! `hoplite token`: takes a token out of the stock and prints it, or fills the stock.

use std::{path::PathBuf, sync::atomic::Ordering};

use clap::Args;
use hoplite_overlay::{Isolation, direct::Direct};
use serde_json::json;
use zeroize::Zeroizing;

use super::{Wallets, file};
use crate::{config::client, process, say, say::Failure};

/// What `hoplite token` is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The client's TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The relay of the file that it is for. Without it none is taken: the issuers are asked for what is missing, and what there is then is printed.
    #[arg(long, value_name = "NAME")]
    relay: Option<String>,
}

/// Runs it.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let client = client::load(&options.config)?;
    match &options.relay {
        Some(name) => print(&client, name, json),
        None => refill(&client, json),
    }
}

/// Asks each issuer for its keys, and for what is missing of the names of the file then, and says what is there.
fn refill(client: &client::Client, json: bool) -> Result<(), Failure> {
    process::current_thread_runtime()?.block_on(async {
        let wallets = Wallets::new(&client.config, &Direct::for_tunnels(), file)?;
        let mut failed = Vec::new();
        for wallet in &wallets.0 {
            // Tokens whose keys are given up are worth nothing, however many there are.
            wallet.doubts.store(true, Ordering::Relaxed);
            if let Err(error) = wallet.fill(&wallet.asking.lock().await).await {
                failed.push(format!("{}: {error}", wallet.issuer.name));
            }
        }
        let left = wallets.left();
        if left.is_empty() {
            let why = "no [[relay]] of the file has an `issuer`";
            return Err(Failure::new("asking for tokens", why, "add one"));
        }
        if json {
            say::json(&left)?;
        } else {
            let mut lines = left.iter().map(|it| format!("{} {}", it.origin, it.left));
            lines.try_for_each(say::answer)?;
        }
        if failed.is_empty() {
            return Ok(());
        }
        let remedy = "see that the issuer can be reached, or ask its operator for more";
        Err(Failure::new("asking for tokens", failed.join("; "), remedy))
    })
}

/// What a browser or curl shows as the password of Basic.
fn print(client: &client::Client, name: &str, json: bool) -> Result<(), Failure> {
    let failed = |why: String, remedy: &str| {
        Failure::new(format!("taking a token for relay {name}"), why, remedy)
    };
    let mut relays = client.config.relay.iter();
    let relay = relays.find(|relay| relay.name == name);
    let relay = relay
        .filter(|relay| relay.issuer.is_some())
        .ok_or_else(|| {
            let why = "no [[relay]] of the file has this name and an `issuer`".into();
            failed(why, "correct the name, or add the issuer")
        })?;
    process::current_thread_runtime()?.block_on(async {
        let wallets = Wallets::new(&client.config, &Direct::for_tunnels(), file)?;
        let token = match wallets.source(relay) {
            Some(source) => Some(source.take(&Isolation::default()).await.map_err(|error| {
                let why = wallets.trouble(relay);
                let remedy = "see that the issuer can be reached, or ask its operator for more";
                failed(why.unwrap_or_else(|| error.to_string()), remedy)
            })?),
            None => None,
        };
        let text = Zeroizing::new(token.map(|token| token.to_text()).unwrap_or_default());
        if json {
            say::json(&json!({"relay": name, "token": *text}))
        } else {
            say::answer(&*text)
        }
    })
}
