//! What a client answers at its control socket: of Tor's control protocol as much as telling of circuits and streams needs, and nothing that changes
//! anything. A state machine that lines go into; whoever has the socket drives it. control-spec, "Client-to-server message formats".

use std::fmt::Write;

use super::events::{Event, EventKind};

/// The longest command, in bytes, with its end.
pub const LONGEST: usize = 4096;

/// Of whose protocol this is a part, for programs that ask for a version.
const VERSION: &str = concat!("0.4.9.0-hoplite-", env!("CARGO_PKG_VERSION"));

/// One connection.
#[derive(Debug, Default)]
pub struct Session {
    authenticated: bool,
    circuits: bool,
    streams: bool,
}

/// What is said to a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// With the ends of its lines.
    pub text: String,
    /// The connection ends then.
    pub last: bool,
}

impl Answer {
    fn new(text: &str) -> Self {
        Self {
            text: format!("{text}\r\n"),
            last: false,
        }
    }

    fn last(text: &str) -> Self {
        Self {
            last: true,
            ..Self::new(text)
        }
    }
}

impl Session {
    /// Takes a command, without the end of its line.
    pub fn command(&mut self, line: &str) -> Answer {
        let mut words = line.split_ascii_whitespace();
        let keyword = words.next().unwrap_or_default().to_ascii_uppercase();
        match keyword.as_str() {
            "QUIT" => Answer::last("250 closing connection"),
            "PROTOCOLINFO" => Answer::new(&format!(
                "250-PROTOCOLINFO 1\r\n250-AUTH METHODS=NULL\r\n250-VERSION Tor=\"{VERSION}\"\r\n250 OK"
            )),
            // Whoever may open the socket may follow.
            "AUTHENTICATE" => {
                self.authenticated = true;
                Answer::new("250 OK")
            }
            _ if !self.authenticated => Answer::last("514 Authentication required."),
            "SETEVENTS" => self.set_events(words),
            "GETINFO" => get_info(words),
            _ => Answer::new("510 Unrecognized command: this socket tells of circuits and streams"),
        }
    }

    fn set_events<'a>(&mut self, codes: impl Iterator<Item = &'a str>) -> Answer {
        let (mut circuits, mut streams) = (false, false);
        for code in codes {
            match code.to_ascii_uppercase().as_str() {
                "CIRC" => circuits = true,
                "STREAM" => streams = true,
                // What it asks for is there anyway.
                "EXTENDED" => {}
                _ => return Answer::new(&format!("552 Unrecognized event \"{}\"", quoted(code))),
            }
        }
        (self.circuits, self.streams) = (circuits, streams);
        Answer::new("250 OK")
    }

    /// The line that tells of this event, with its end, if it was asked for.
    pub fn event(&self, event: &Event) -> Option<String> {
        let wanted = match event.kind {
            EventKind::Circuit => self.circuits,
            EventKind::Stream => self.streams,
        };
        wanted.then(|| format!("650 {}\r\n", event.text))
    }
}

fn get_info<'a>(keys: impl Iterator<Item = &'a str>) -> Answer {
    let mut text = String::new();
    for key in keys {
        if key != "version" {
            return Answer::new(&format!("552 Unrecognized key \"{}\"", quoted(key)));
        }
        write!(text, "250-version={VERSION}\r\n").unwrap_or_default();
    }
    Answer::new(&format!("{text}250 OK"))
}

/// What was asked, as an answer may repeat it.
fn quoted(word: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_graphic() && c != '"' {
            c
        } else {
            '?'
        }
    };
    word.chars().take(64).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(session: &mut Session, line: &str) -> String {
        session.command(line).text
    }

    fn event(kind: EventKind) -> Event {
        Event {
            kind,
            text: "CIRC 1 LAUNCHED PURPOSE=GENERAL".into(),
        }
    }

    #[test]
    fn whoever_has_not_said_who_he_is_gets_nothing_but_how_to() {
        let mut session = Session::default();
        assert!(said(&mut session, "protocolinfo 1").contains("METHODS=NULL"));
        let refused = session.command("SETEVENTS CIRC");
        assert!(refused.last && refused.text.starts_with("514 "));
        assert_eq!(session.event(&event(EventKind::Circuit)), None);
        assert!(session.command("QUIT").last);
    }

    #[test]
    fn a_follower_hears_what_he_asked_for_and_each_time_anew() {
        let mut session = Session::default();
        assert_eq!(said(&mut session, "AUTHENTICATE \"\""), "250 OK\r\n");
        assert_eq!(said(&mut session, "setevents extended circ"), "250 OK\r\n");
        let line = session.event(&event(EventKind::Circuit));
        let line = line.expect("asked for");
        assert_eq!(line, "650 CIRC 1 LAUNCHED PURPOSE=GENERAL\r\n");
        assert_eq!(session.event(&event(EventKind::Stream)), None);
        assert_eq!(said(&mut session, "SETEVENTS STREAM"), "250 OK\r\n");
        assert_eq!(session.event(&event(EventKind::Circuit)), None);
        assert!(session.event(&event(EventKind::Stream)).is_some());
        assert_eq!(said(&mut session, "SETEVENTS"), "250 OK\r\n");
        assert_eq!(session.event(&event(EventKind::Stream)), None);
    }

    #[test]
    fn what_it_does_not_know_is_refused_and_changes_nothing() {
        let mut session = Session::default();
        session.command("AUTHENTICATE");
        session.command("SETEVENTS CIRC");
        let refused = said(&mut session, "SETEVENTS STREAM B\"\u{e9}W");
        assert_eq!(refused, "552 Unrecognized event \"B??W\"\r\n");
        assert!(session.event(&event(EventKind::Circuit)).is_some());
        assert!(said(&mut session, "SIGNAL NEWNYM").starts_with("510 "));
        assert!(said(&mut session, "").starts_with("510 "));
        let version = said(&mut session, "GETINFO version");
        assert!(
            version.starts_with("250-version=0.4.9.0-hoplite-") && version.ends_with("250 OK\r\n")
        );
        assert!(said(&mut session, "GETINFO version circuit-status").starts_with("552 "));
    }
}
