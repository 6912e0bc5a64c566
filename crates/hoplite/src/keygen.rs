//! `hoplite keygen`: makes the identity of a relay, the key of an authority, or that of a client of an onion service, and says how it is recognised.
//! The pin goes to stdout, for scripts; what clients put into their file goes to stderr, for people.

use std::path::{Path, PathBuf};

use clap::Args;
use hoplite_crypto::{
    Pin, RelayUrl,
    onion::{identity::RelayIdentity, service_keys::OnionAddress},
};
use hoplite_wire::{OnionKey, directory::Key};
use serde_json::json;

use crate::{
    directory::now,
    identity::{self, Files, Stored},
    say,
    say::Failure,
    service_keys,
};

/// The options.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The directory for cert.pem, key.pem and onion.key; it is made if absent.
    #[arg(long, value_name = "DIR", required_unless_present = "show")]
    out: Option<PathBuf>,
    /// Print what clients write of the identity that is in this directory, and make nothing.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "authority", "onion_client", "force", "rsa", "family", "offline"])]
    show: Option<PathBuf>,
    /// A host name or address for the certificate; may be given several times. Clients go by the pin, not by it.
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Give the identity an RSA identity too, as relays of Tor have it: a fourth file, secret_id_key, which C tor reads as well.
    #[arg(long, conflicts_with_all = ["authority", "onion_client"])]
    rsa: bool,
    /// Keep the identity in the directory --master and not in --out: it is made there, or moved there out of --out, and certifies a signing key that the relay
    /// runs with for --days. Run again before its time is over; signing.key alone has to be brought to the relay then.
    #[arg(long, requires = "master", conflicts_with_all = ["authority", "onion_client", "family", "force"])]
    offline: bool,
    /// Where the identity is kept (master.key): on no machine that is reached from the network.
    #[arg(long, value_name = "DIR", requires = "offline")]
    master: Option<PathBuf>,
    /// For how many days the signing key is certified.
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=365), requires = "offline")]
    days: u64,
    /// Make the key of a family of relays in a network of Tor's instead: one file, family.secret_family_key, for `onion.tor.family_keys` of all of them,
    /// which C tor reads as well; prints its id, C tor's `FamilyId`.
    #[arg(long, conflicts_with_all = ["name", "rsa", "authority", "onion_client"])]
    family: bool,
    /// Make the key of a directory authority instead: one file, authority.key; prints its public half.
    #[arg(long, conflicts_with = "name")]
    authority: bool,
    /// Make the key of a client whom the onion service of this address is to authorise instead: a file for the client's `onion.client_keys`;
    /// prints the line that the service's operator puts into authorized_clients/NAME.auth.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["name", "authority"])]
    onion_client: Option<String>,
    /// Replace an identity that is there already: clients need the new pin and the new `onion` then.
    #[arg(long)]
    force: bool,
}

/// Runs it.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let host = options.name.first();
    let host = host.map_or("relay.example.org", String::as_str);
    match (&options.show, &options.out) {
        (Some(directory), _) => tell(&Made::read(directory)?, host, json),
        (None, Some(out)) if options.onion_client.is_some() => {
            let address = options.onion_client.as_deref().unwrap_or_default();
            client_key(out, address, options.force, json)
        }
        (None, Some(out)) if options.offline => offline(out, options, json),
        (None, Some(out)) if options.family => family_key(out, options.force, json),
        (None, Some(out)) if options.authority => authority_key(out, options.force, json),
        (None, Some(out)) => tell(&Made::make(out, options)?, host, json),
        (None, None) => Err(Failure::new(
            "making an identity",
            "no directory is given",
            "say where with --out DIR",
        )),
    }
}

/// An identity that is on disk.
struct Made {
    files: Files,
    pin: Pin,
    /// Of an identity that an earlier version made there is none until a relay with `[onion]` starts with it.
    onion: Option<(Stored, RelayIdentity)>,
}

impl Made {
    fn make(out: &Path, options: &Options) -> Result<Self, Failure> {
        let force = options.force;
        let new = identity::make(&options.name)?;
        let pin = identity::parse(&new)?.pin();
        let files = identity::store(out, &new, force)?;
        let onion = if force {
            Stored::make(out, now())
        } else {
            Stored::read_or_make(out, now())
        }?;
        if options.rsa {
            onion.make_rsa_key_if_missing()?;
        }
        let identity = onion.identity(now())?;
        Ok(Self {
            files,
            pin,
            onion: Some((onion, identity)),
        })
    }

    fn read(directory: &Path) -> Result<Self, Failure> {
        let files = Files::within(directory);
        let pin = files.read()?.pin();
        let onion = match Stored::read(directory)? {
            Some(stored) => {
                let identity = stored.identity(now())?;
                Some((stored, identity))
            }
            None => None,
        };
        Ok(Self { files, pin, onion })
    }
}

/// Says how the identity is recognised.
fn tell(made: &Made, host: &str, json: bool) -> Result<(), Failure> {
    let pin = made.pin.to_string();
    let onion = made.onion.as_ref();
    let rsa = onion.and_then(|(_, identity)| identity.peer().rsa);
    let rsa = rsa.map(|rsa| say::hex(&rsa.id));
    let onion = onion.map(|(stored, _)| stored.public()).transpose()?;
    let url = url(made.pin, onion, host);
    let onion = onion.map(|key| key.to_string());
    let Files { certificate, key } = &made.files;
    if json {
        let mut said =
            json!({"pin": pin, "onion": onion, "url": url, "certificate": certificate, "key": key});
        if let (Some(rsa), Some(said)) = (rsa, said.as_object_mut()) {
            said.insert("rsa".into(), rsa.into());
        }
        return say::json(&said);
    }
    let at = certificate.parent().unwrap_or_else(|| Path::new("."));
    say::remark(format!(
        "hoplite: the identity is in {}; clients write:",
        at.display()
    ));
    let line = |key: &str, value: Option<String>| {
        value.map_or_else(String::new, |value| format!("{key} = \"{value}\"\n"))
    };
    say::remark(format!(
        "\n[[relay]]\nname = \"relay\"\naddress = \"{}\"\npin = \"{pin}\"\n{}{}",
        authority(host),
        line("onion", onion),
        line("rsa", rsa),
    ));
    if let Some(url) = url {
        say::remark(format!(
            "or `hoplite import` this, with '#' and their token behind it:\n\n{url}\n"
        ));
    }
    say::answer(pin)
}

/// The relay's URL, without a token: those are the operator's to give out. None for a certificate whose name is no host's.
fn url(pin: Pin, onion: Option<OnionKey>, host: &str) -> Option<String> {
    let url = RelayUrl {
        name: "relay".into(),
        address: authority(host).parse().ok()?,
        pin: Some(pin),
        onion,
        ingress: true,
        egress: true,
        token: None,
    };
    Some(url.to_string())
}

/// `--offline`.
fn offline(out: &Path, options: &Options, json: bool) -> Result<(), Failure> {
    let master = options.master.as_deref().unwrap_or(out);
    if !Files::within(out).exist() {
        identity::store(out, &identity::make(&options.name)?, false)?;
    }
    let lifetime = options.days.saturating_mul(24 * 3600);
    let made = identity::certify_offline(out, master, lifetime, now())?;
    if options.rsa {
        made.stored.make_rsa_key_if_missing()?;
    }
    let onion = made.stored.public()?.to_string();
    if json {
        let (key, expires) = (&made.master, made.expires);
        return say::json(&json!({"onion": onion, "master": key, "expires": expires}));
    }
    say::remark(format!(
        "hoplite: the identity is in {}: keep it off the relay; the relay runs with {} for {} days",
        made.master.display(),
        out.display(),
        options.days
    ));
    say::answer(onion)
}

/// `--family`.
fn family_key(out: &Path, force: bool, json: bool) -> Result<(), Failure> {
    let (path, key) = identity::make_family_key(out, force)?;
    if json {
        return say::json(&json!({"public": key.id(), "key": path}));
    }
    say::remark(format!(
        "hoplite: the key is in {}; every relay of the family needs it",
        path.display()
    ));
    say::answer(key.id())
}

/// `--authority`.
fn authority_key(out: &Path, force: bool, json: bool) -> Result<(), Failure> {
    let path = out.join("authority.key");
    let key = identity::make_secret(&path, force)?;
    let public = Key(key.public());
    if json {
        return say::json(&json!({"public": public.to_string(), "key": path}));
    }
    let at = format!("\"{public}@host:port\"");
    say::remark(format!(
        "hoplite: the key is in {}; files name this authority {at}",
        path.display()
    ));
    say::answer(public.to_string())
}

/// `--onion-client`.
fn client_key(out: &Path, address: &str, force: bool, json: bool) -> Result<(), Failure> {
    let service: OnionAddress = address.parse().map_err(|error| {
        let remedy = "write it as its operator gave it, ending in .onion";
        Failure::new("reading the address of the onion service", error, remedy)
    })?;
    let (path, key) = service_keys::make_client(out, &service, force)?;
    let line = key.file();
    let line = line.trim_end();
    if json {
        return say::json(&json!({"public": line, "key": path}));
    }
    say::remark(format!(
        "hoplite: the key is in {}; the service's operator puts this line into a file of authorized_clients, NAME.auth",
        path.display()
    ));
    say::answer(line)
}

/// An IPv6 address wants brackets.
fn authority(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]:443")
    } else {
        format!("{host}:443")
    }
}
