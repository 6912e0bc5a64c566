//! `hoplite keygen`: makes the identity of a relay and says how clients recognise it.
//! The pin goes to stdout, for scripts; what clients put into their file goes to stderr, for people.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::{errors::Failure, identity, say};

/// The options.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The directory for cert.pem and key.pem; it is made if absent.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A host name or address for the certificate; may be given several times. Clients go by the pin, not by it.
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Replace an identity that is there already: clients need the new pin then.
    #[arg(long)]
    force: bool,
}

/// Runs it.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let new = identity::make(&options.name)?;
    let pin = identity::parse(&new)?.pin();
    let files = identity::store(&options.out, &new, options.force)?;
    if json {
        let (certificate, key) = (files.certificate, files.key);
        return say::json(&json!({"pin": pin.to_string(), "certificate": certificate, "key": key}));
    }
    let host = options
        .name
        .first()
        .map_or("relay.example.org", String::as_str);
    say::remark(format!(
        "hoplite: the identity is in {}; clients write:",
        options.out.display()
    ));
    say::remark(format!(
        "\n[[relay]]\nname = \"relay\"\naddress = \"{}\"\npin = \"{pin}\"\n",
        authority(host)
    ));
    say::answer(pin.to_string())
}

/// An IPv6 address wants brackets.
fn authority(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]:443"),
        false => format!("{host}:443"),
    }
}
