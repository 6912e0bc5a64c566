//! What `hoplite init` asks on a terminal where flags do not say it: whether a relay or a client is wanted, and what its file needs. What comes of it goes the
//! way of flags: a relay as if they had been given, a client as `hoplite import` takes it.
//!
//! Questions go to any writer and answers come from any reader, one line each. What is answered is never written back: a URL has a token.

use std::{
    io::{BufRead, Write},
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use hoplite_crypto::{RelayUrl, is_relay_name};
use hoplite_wire::Target;
use zeroize::Zeroizing;

use super::{Does, Init, RELAY_FILE, first_part, with_port};
use crate::say::{Complaint, Failure};

/// Room for a line, so that none with a token is left behind where it had too little: a URL has 2048 bytes at most.
const LINE: usize = 4096;

/// What was asked for.
#[derive(Debug)]
pub(super) enum Asked {
    /// A relay: the options, with all that it needs.
    Relay(Box<Init>),
    /// A client: its relays, the first hop first, and its file.
    Client(Vec<RelayUrl>, PathBuf),
}

/// What is suggested for files.
#[derive(Clone, Debug)]
pub(super) struct Suggested {
    /// A relay's directory.
    pub(super) directory: &'static str,
    /// A client's file.
    pub(super) file: &'static str,
}

/// Asks for all that `options` do not say.
pub(super) fn all(
    options: Init,
    suggested: &Suggested,
    input: &mut dyn BufRead,
    out: &mut dyn Write,
) -> Result<Asked, Failure> {
    let mut dialogue = Dialogue { input, out };
    if options.is_of_a_relay() || dialogue.wants_relay()? {
        let options = dialogue.relay(options, suggested.directory)?;
        return Ok(Asked::Relay(Box::new(options)));
    }
    let urls = dialogue.urls()?;
    let file = dialogue.ask("The client's file", suggested.file, path)?;
    Ok(Asked::Client(urls, file))
}

struct Dialogue<'a> {
    input: &'a mut dyn BufRead,
    out: &'a mut dyn Write,
}

impl Dialogue<'_> {
    /// Asks until `read` takes the answer, and says what is wrong with one that it does not take. An empty answer is the default.
    fn ask<T>(
        &mut self,
        question: &str,
        default: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let suffix = if default.is_empty() {
            String::new()
        } else {
            format!(" [{default}]")
        };
        loop {
            self.write(&format!("{question}{suffix}: "))?;
            let answer = self.line()?;
            let answer = match answer.trim() {
                "" => default,
                answer => answer,
            };
            match read(answer) {
                Ok(value) => return Ok(value),
                Err(why) => self.write(&format!("  {why}\n"))?,
            }
        }
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes());
        let written = written.and_then(|()| self.out.flush());
        written.map_err(|error| failed(&error))
    }

    fn line(&mut self) -> Result<Zeroizing<String>, Failure> {
        let mut line = Zeroizing::new(String::with_capacity(LINE));
        match self.input.read_line(&mut line) {
            Ok(0) => {
                self.write("\n")?;
                Err(ended())
            }
            Ok(_) => Ok(line),
            Err(error) => Err(failed(&error)),
        }
    }

    fn wants_relay(&mut self) -> Result<bool, Failure> {
        self.ask("A relay or a client?", "relay", |answer| match answer {
            "relay" => Ok(true),
            "client" => Ok(false),
            _ => Err("answer relay or client".to_owned()),
        })
    }

    fn relay(&mut self, mut options: Init, directory: &str) -> Result<Init, Failure> {
        if options.address.is_none() {
            let question = "Host and port by which clients reach it (without a port: 443)";
            let is_named = options.name.is_some();
            let address = self.ask(question, "", |answer| host(answer, is_named))?;
            options.address = Some(address);
        }
        if options.role.is_none() {
            let question = "What it does: ingress (forward), egress (connect to targets) or both?";
            options.role = Some(self.ask(question, "both", role)?);
        }
        if options.role == Some(Does::Ingress) && options.next.is_empty() && !options.onion {
            let question = "The relays that it forwards to, HOST:PORT each";
            options.next = self.ask(question, "", relays)?;
        }
        if options.out.is_none() {
            let question = "The directory for its files";
            options.out = Some(self.ask(question, directory, empty_of_relays)?);
        }
        Ok(options)
    }

    fn urls(&mut self) -> Result<Vec<RelayUrl>, Failure> {
        self.write("The relays' URLs, in the order of the path; an empty line ends them.\n")?;
        let mut urls: Vec<RelayUrl> = Vec::new();
        loop {
            let question = format!("URL {} (hoplite://…)", urls.len() + 1);
            match self.ask(&question, "", |answer| url(answer, &urls))? {
                Some(url) => urls.push(url),
                None => return Ok(urls),
            }
        }
    }
}

fn host(answer: &str, is_named: bool) -> Result<String, String> {
    if answer.is_empty() {
        return Err("a relay has an address or a name, such as relay.example.org".to_owned());
    }
    let address = with_port(answer)?;
    if !is_named && !is_relay_name(&first_part(&address)) {
        return Err("no relay can be called like this; end here, and give --name".to_owned());
    }
    Ok(answer.to_owned())
}

fn role(answer: &str) -> Result<Does, String> {
    Does::from_str(answer, true).map_err(|_| "answer ingress, egress or both".to_owned())
}

fn relays(answer: &str) -> Result<Vec<String>, String> {
    let words = answer
        .split([' ', ',', '\t'])
        .filter(|word| !word.is_empty());
    let relays = words.map(|word| match word.parse::<Target>() {
        Ok(_) => Ok(word.to_owned()),
        Err(error) => Err(format!("{word:?} is no host and port: {error}")),
    });
    let relays: Vec<_> = relays.collect::<Result<_, _>>()?;
    if relays.is_empty() {
        return Err("a relay that only forwards needs at least one".to_owned());
    }
    Ok(relays)
}

fn path(answer: &str) -> Result<PathBuf, String> {
    Ok(PathBuf::from(answer))
}

fn empty_of_relays(answer: &str) -> Result<PathBuf, String> {
    if Path::new(answer).join(RELAY_FILE).exists() {
        return Err(format!("there is a {RELAY_FILE} already; name another"));
    }
    path(answer)
}

fn url(answer: &str, before: &[RelayUrl]) -> Result<Option<RelayUrl>, String> {
    if answer.is_empty() {
        let why = || "a client needs at least one; relays' operators hand them out".to_owned();
        return (!before.is_empty()).then_some(None).ok_or_else(why);
    }
    let url: RelayUrl = answer
        .parse()
        .map_err(|error| format!("this is no relay's: {error}"))?;
    if before.iter().any(|other| other.name == url.name) {
        return Err(format!("a relay {:?} is there already", url.name));
    }
    Ok(Some(url))
}

fn failed(error: &std::io::Error) -> Failure {
    let remedy = "give the answers as flags: see 'hoplite init --help'";
    Failure::new("asking what to write", error, remedy)
}

fn ended() -> Failure {
    Failure::Wrong(vec![Complaint::new(
        "asking what to write",
        "the input ended before all was answered",
        "answer, or use flags: 'hoplite init HOST[:PORT] --out DIR [--role ROLE] [--next HOST:PORT]' for a relay, 'hoplite import URL… [--config FILE]' for a client",
    )])
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const AMBER: &str = "hoplite://amber.example.org:443/amber?roles=ingress#secret-a";
    const BIRCH: &str = "hoplite://birch.example.net:443/birch#secret-b";

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        init: Init,
    }

    /// What comes of these flags and these answers, and what was asked.
    fn asked(flags: &[&str], answers: &str) -> (Result<Asked, Failure>, String) {
        let line = Line::try_parse_from([&["init"], flags].concat()).expect("flags");
        let suggested = Suggested {
            directory: "relay-here",
            file: "client-here.toml",
        };
        let mut out = Vec::new();
        let done = all(line.init, &suggested, &mut answers.as_bytes(), &mut out);
        (done, String::from_utf8(out).expect("text"))
    }

    fn relay(flags: &[&str], answers: &str) -> (Init, String) {
        match asked(flags, answers) {
            (Ok(Asked::Relay(options)), said) => (*options, said),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_host_is_enough_for_a_relay_and_the_rest_is_suggested() {
        let (options, said) = relay(&[], "\namber.example.org\n\n\n");
        assert_eq!(options.address.as_deref(), Some("amber.example.org"));
        assert_eq!(options.role, Some(Does::Both));
        assert_eq!(options.out, Some(PathBuf::from("relay-here")));
        for default in ["[relay]: ", "[both]: ", "[relay-here]: "] {
            assert!(said.contains(default), "{said}");
        }
        assert!(!said.contains("forwards to"), "{said}");
    }

    #[test]
    fn wrong_answers_are_told_and_asked_again() {
        let taken = tempfile::tempdir().expect("made");
        std::fs::write(taken.path().join(RELAY_FILE), "").expect("written");
        let taken = taken.path().display();
        let answers = format!(
            "server\nrelay\n\namber:port\namber:4433\nmiddle\nIngress\n\nbirch\nbirch:443, cedar:443\n{taken}\nother\n"
        );
        let (options, said) = relay(&[], &answers);
        assert_eq!(options.address.as_deref(), Some("amber:4433"));
        assert_eq!(options.next, ["birch:443", "cedar:443"]);
        assert_eq!(options.out, Some(PathBuf::from("other")));
        for why in [
            "answer relay or client",
            "a relay has an address",
            "\"amber:port\" is no host and port",
            "answer ingress, egress or both",
            "needs at least one",
            "\"birch\" is no host and port",
            "there is a relay.toml already",
        ] {
            assert!(said.contains(why), "{why}: {said}");
        }
    }

    #[test]
    fn what_flags_say_is_not_asked() {
        let (options, said) = relay(&["amber.example.org", "--role", "ingress"], "b:1\n\n");
        assert_eq!(options.next, ["b:1"]);
        assert_eq!(said.matches(": ").count(), 2, "{said}");
        let (_, said) = relay(&["--onion", "--role", "ingress", "--out", "x"], "amber\n");
        assert_eq!(said.matches(": ").count(), 2, "{said}");
    }

    #[test]
    fn a_client_is_asked_for_urls_and_no_token_is_written_back() {
        let answers = format!("client\n\n{AMBER}x y\n{AMBER}\n{AMBER}\n{BIRCH}\n\n\n");
        let (done, said) = asked(&[], &answers);
        let Ok(Asked::Client(urls, file)) = done else {
            panic!("{done:?}");
        };
        let names: Vec<_> = urls.iter().map(|url| url.name.as_str()).collect();
        assert_eq!(names, ["amber", "birch"]);
        assert_eq!(file, PathBuf::from("client-here.toml"));
        for why in ["at least one", "this is no relay's", "is there already"] {
            assert!(said.contains(why), "{why}: {said}");
        }
        assert!(!said.contains("secret"), "{said}");
    }

    #[test]
    fn wherever_the_input_ends_it_is_wrong_usage_and_flags_are_named() {
        let relay = "relay\namber\ningress\nbirch:443\n".to_owned();
        let client = format!("client\n{AMBER}\n\n");
        for whole in [relay, client] {
            let mut answers = String::new();
            for line in whole.split_inclusive('\n') {
                answers.push_str(line);
                let (done, _) = asked(&[], &answers);
                let Err(failure @ Failure::Wrong(_)) = done else {
                    panic!("{answers:?}: {done:?}");
                };
                let said = failure.to_string();
                assert!(
                    said.contains("--out") && said.contains("hoplite import"),
                    "{said}"
                );
                assert!(!said.contains("secret"), "{said}");
            }
        }
    }
}
