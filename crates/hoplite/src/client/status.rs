//! What `hoplite client` says of itself to `hoplite status`: over a socket in a directory that it was given, as `hoplite up` does.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    ClientOverlay,
    service::{Running, ServiceStatus, lines, statuses},
};
use crate::{
    say::Failure,
    up::control::{self, Asked, Command, path_line},
};

/// What the socket and the lock in the directory are called by.
pub(crate) const NAME: &str = "client";

/// How a client does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClientStatus {
    /// Always [`NAME`]: by this scripts tell it from `hoplite up`.
    state: String,
    /// Its process.
    pid: u32,
    /// The relays of the path, the first one first.
    path: Vec<String>,
    /// Whether there is a connection to each of them now.
    connected: bool,
    /// What circuits run over, if they carry the traffic and there is a channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channel: Option<String>,
    /// Circuits to onion services.
    service_circuits: usize,
    /// The onion services of its file.
    services: Vec<ServiceStatus>,
}

/// The socket in `run_dir`, if there is one.
pub(super) fn listen(run_dir: Option<&Path>) -> Result<control::Socket, Failure> {
    control::Socket::listen(run_dir, NAME, "starting the client")
}

/// Answers a question.
pub(super) fn answer(asked: Asked, carried: &ClientOverlay, services: &[Running]) {
    let value = match asked.command {
        Command::Status => json!(ClientStatus::of(carried, services)),
        Command::Down | Command::Leave => {
            json!({"failed": "a client ends by a signal: there is nothing to undo"})
        }
    };
    // Who has gone away meanwhile does not wait for it.
    asked.answer.send(value).unwrap_or_default();
}

impl ClientStatus {
    fn of(carried: &ClientOverlay, services: &[Running]) -> Self {
        Self {
            state: NAME.to_owned(),
            pid: std::process::id(),
            path: carried.names(),
            connected: carried.missing().is_none(),
            channel: carried.channel().map(str::to_owned),
            service_circuits: carried.service_circuits(),
            services: statuses(services),
        }
    }

    /// What a client has answered, if one has.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let is_client = value.get("state").is_some_and(|state| state == NAME);
        is_client
            .then(|| serde_json::from_value(value.clone()).ok())
            .flatten()
    }

    /// For people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let first = format!(
            "a client serves programs that use its proxies (process {})",
            self.pid
        );
        let path = path_line(&self.path, self.connected, self.channel.as_deref());
        let services = lines(&self.services, self.service_circuits);
        [first, path].into_iter().chain(services).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> ClientStatus {
        ClientStatus {
            state: NAME.to_owned(),
            pid: 7,
            path: vec!["amber".into()],
            connected: true,
            channel: Some("quic".into()),
            service_circuits: 2,
            services: vec![ServiceStatus::default()],
        }
    }

    #[test]
    fn what_a_client_says_is_read_and_nothing_else_is_taken_for_it() {
        let said = json!(status());
        assert_eq!(ClientStatus::read(&said), Some(status()));
        assert_eq!(ClientStatus::read(&json!({"state": "up"})), None);
        assert_eq!(ClientStatus::read(&json!({"state": "client"})), None);
        let lines = status().lines().join("|");
        assert!(
            lines.contains("process 7") && lines.contains("amber"),
            "{lines}"
        );
    }

    #[tokio::test]
    async fn a_client_answers_at_its_socket_and_a_second_one_has_none_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let run = directory.path().join("run");
        let mut socket = listen(Some(&run)).expect("listens");
        let second = listen(Some(&run)).expect_err("taken");
        assert!(second.to_string().contains("--run-dir"), "{second}");
        let carried = ClientOverlay::without_relays(&super::super::Underlay::default());
        let path = control::path(&run, NAME);
        let asking = tokio::task::spawn_blocking(move || control::ask(&path, Command::Status));
        answer(socket.asked().await, &carried, &[]);
        let said = asking.await.expect("no panic").expect("asked");
        let said = ClientStatus::read(&said.expect("an answer")).expect("a client's");
        assert_eq!((said.pid, said.path), (std::process::id(), vec![]));
    }
}
