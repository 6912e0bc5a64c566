//! The relays of a client's file, as far as a load test needs them: a path of tunnels whose relays are named. What else such a file may say (front ends, a
//! device) is not looked at; what would make another path of it is refused.

use std::{
    fs,
    path::{Path, PathBuf},
};

use hoplite_client::Client;
use hoplite_crypto::{RelayUrl, Token};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::errors::{Complaint, Failure};

#[derive(Deserialize)]
struct File {
    overlay: Option<String>,
    #[serde(default)]
    path: Vec<String>,
    directory: Option<toml::Table>,
    hops: Option<u32>,
    #[serde(default)]
    relay: Vec<Relay>,
    token: Option<String>,
    token_file: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Relay {
    name: String,
    address: String,
    pin: Option<String>,
    roles: Option<Vec<String>>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    issuer: Option<String>,
    template: Option<String>,
}

/// The relays of a path, the first one first.
pub(super) struct Relays(Vec<Zeroizing<String>>);

impl Relays {
    /// Reads a client's file.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |why: String, remedy: &str| {
            let doing = format!("reading {}", path.display());
            Failure::Wrong(vec![Complaint::new(doing, why, remedy)])
        };
        let text = fs::read_to_string(path).map(Zeroizing::new);
        let text = text.map_err(|error| wrong(error.to_string(), "check --config"))?;
        // Not toml's own message, which shows the line: it may have a token.
        let file: File = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let why = error.message().to_owned();
            wrong(why, "'hoplite check --config' says where")
        })?;
        if let Some(why) = file.refused() {
            let remedy = "write one for the test: 'hoplite import' makes it of the relays' URLs";
            return Err(wrong(why.to_owned(), remedy));
        }
        let shared = secret(path, file.token.clone(), file.token_file.as_deref());
        let shared = shared.map_err(|why| wrong(why, "check `token_file`"))?;
        let find = |name: &String| {
            let relay = file.relay.iter().find(|relay| relay.name == *name);
            let relay = relay.ok_or_else(|| format!("there is no relay {name:?} for `path`"))?;
            relay.url(path, shared.as_ref())
        };
        let urls: Result<Vec<_>, String> = file.path.iter().map(find).collect();
        let urls = urls.map_err(|why| wrong(why, "'hoplite check --config' says more"))?;
        Ok(Self(urls))
    }

    /// A client with connections of its own. Needs a runtime.
    pub(super) fn client(&self) -> Result<Client, hoplite_client::BuildError> {
        let builder = self
            .0
            .iter()
            .try_fold(Client::builder(), |builder, url| builder.relay(url));
        builder?.build()
    }
}

impl File {
    fn refused(&self) -> Option<&'static str> {
        let overlay = self.overlay.as_deref().unwrap_or("masque");
        let issued = self.relay.iter().any(|relay| relay.issuer.is_some());
        let template = self.relay.iter().any(|relay| relay.template.is_some());
        let refusals = [
            (
                overlay != "masque",
                "a load test goes over tunnels: `overlay` is another",
            ),
            (
                self.directory.is_some(),
                "a load test is for relays that are named, not listed: `directory` is there",
            ),
            (
                self.hops.is_some() || self.path.is_empty(),
                "a load test has one path: name its relays in `path`, without `hops`",
            ),
            (
                issued,
                "private tokens would be used up: give the relay a `token` for the test instead of `issuer`",
            ),
            (template, "a load test knows no `template`"),
        ];
        refusals.into_iter().find(|(is, _)| *is).map(|(_, why)| why)
    }
}

impl Relay {
    fn url(&self, file: &Path, shared: Option<&Token>) -> Result<Zeroizing<String>, String> {
        let name = &self.name;
        let token = secret(file, self.token.clone(), self.token_file.as_deref())?;
        let has = |role: &str| {
            let roles = self.roles.as_deref();
            roles.is_none_or(|roles| roles.iter().any(|has| has == role))
        };
        let pin = self.pin.as_deref().map(str::parse).transpose();
        let address = self.address.parse();
        let url = RelayUrl {
            name: name.clone(),
            address: address.map_err(|why| format!("the address of {name:?}: {why}"))?,
            pin: pin.map_err(|why| format!("the pin of {name:?}: {why}"))?,
            onion: None,
            ingress: has("ingress"),
            egress: has("egress"),
            token: token.or_else(|| shared.cloned()),
        };
        Ok(Zeroizing::new(url.to_string()))
    }
}

fn secret(
    file: &Path,
    token: Option<String>,
    beside: Option<&Path>,
) -> Result<Option<Token>, String> {
    let Some(beside) = beside else {
        return Ok(token.map(Token::new));
    };
    let path = file.parent().unwrap_or_else(|| Path::new("")).join(beside);
    let text = fs::read_to_string(&path).map(Zeroizing::new);
    let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some(Token::new(text.trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAYS: &str = "path = [\"a\", \"b\"]\ntoken = \"shared\"\n[[relay]]\nname = \"b\"\naddress = \"b.example.org:443\"\ntoken_file = \"b.token\"\nroles = [\"egress\"]\n[[relay]]\nname = \"a\"\naddress = \"a.example.org:4433\"\n";

    fn read(text: &str) -> Result<Vec<String>, Failure> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("b.token"), "of-b\n").unwrap();
        let path = directory.path().join("client.toml");
        fs::write(&path, text).unwrap();
        let relays = Relays::read(&path)?;
        Ok(relays.0.iter().map(|url| url.to_string()).collect())
    }

    #[test]
    fn the_relays_of_a_path_are_read_in_its_order_with_their_tokens() {
        let urls = read(RELAYS).unwrap();
        assert!(urls[0].contains("a.example.org:4433/a") && urls[0].ends_with("#shared"));
        assert!(urls[1].contains("roles=egress") && urls[1].ends_with("#of-b"));
    }

    #[test]
    fn files_of_other_paths_are_refused_and_say_no_token() {
        for (change, why) in [
            ("overlay = \"onion\"\n", "over tunnels"),
            ("hops = 2\n", "one path"),
            ("directory = {}\n", "not listed"),
            ("path = 3\n", "duplicate key"),
        ] {
            let said = read(&format!("{change}{RELAYS}")).unwrap_err().to_string();
            assert!(said.contains(why) && !said.contains("shared"), "{said}");
        }
        let said = read(&RELAYS.replace("name = \"a\"", "name = \"c\"")).unwrap_err();
        assert!(said.to_string().contains("no relay \"a\""), "{said}");
    }
}
