//! A session of WebDriver BiDi (w3.org/TR/webdriver-bidi) with a browser: commands and their answers, and the events between them, as JSON over a
//! WebSocket. Firefox speaks it itself, Chromium through its chromedriver; the WebSocket is tungstenite's.
//!
//! The crates that drive browsers speak WebDriver's older protocol first, for which Firefox needs a program that Debian does not have.

use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message},
};

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unanswered {
    /// The browser closed the session, or speaks something else.
    #[error("the browser's WebDriver BiDi: {0}")]
    Gone(String),
    /// It says that it cannot.
    #[error("{error}: {message}")]
    Refused {
        /// The error's code.
        error: String,
        /// In the browser's words.
        message: String,
    },
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Self {
        Self::Gone(error.to_string())
    }
}

/// Takes events: the method's name and its parameters.
pub(super) type Hear<'a> = &'a mut (dyn FnMut(&str, &Value) + Send);

/// A session.
pub(super) struct Session {
    socket: WebSocketStream<TcpStream>,
    last: u64,
}

impl Session {
    /// Connects to a WebSocket on loopback.
    pub(super) async fn connect(address: SocketAddr, path: &str) -> Result<Self, Unanswered> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the control port of a browser that this process has started"
        )]
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|error| Unanswered::Gone(error.to_string()))?;
        let (socket, _) = client_async(format!("ws://{address}{path}"), stream).await?;
        Ok(Self { socket, last: 0 })
    }

    /// Gives a command and waits for its result; events that come meanwhile are heard.
    pub(super) async fn call(
        &mut self,
        method: &str,
        parameters: &Value,
        hear: Hear<'_>,
    ) -> Result<Value, Unanswered> {
        self.last += 1;
        let command = json!({ "id": self.last, "method": method, "params": parameters });
        self.socket.send(Message::text(command.to_string())).await?;
        loop {
            let message = self.next().await?;
            if message.get("id").and_then(Value::as_u64) != Some(self.last) {
                tell(&message, hear);
                continue;
            }
            return match message.get("type").and_then(Value::as_str) {
                Some("success") => Ok(message.get("result").cloned().unwrap_or_default()),
                _ => Err(refused(&message)),
            };
        }
    }

    /// Waits for an event.
    pub(super) async fn listen(&mut self, hear: Hear<'_>) -> Result<(), Unanswered> {
        let message = self.next().await?;
        tell(&message, hear);
        Ok(())
    }

    async fn next(&mut self) -> Result<Value, Unanswered> {
        loop {
            let message = self.socket.next().await;
            match message.ok_or_else(|| Unanswered::Gone("it was closed".into()))?? {
                Message::Text(text) => {
                    let read = serde_json::from_str(&text);
                    return read.map_err(|error| Unanswered::Gone(error.to_string()));
                }
                Message::Close(_) => return Err(Unanswered::Gone("it was closed".into())),
                _ => {}
            }
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({} commands)", self.last)
    }
}

fn tell(message: &Value, hear: Hear<'_>) {
    let method = message.get("method").and_then(Value::as_str);
    if let (Some(method), Some(event)) = (method, message.get("params")) {
        hear(method, event);
    }
}

fn refused(message: &Value) -> Unanswered {
    let text = |key: &str| {
        let text = message.get(key).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    Unanswered::Refused {
        error: text("error"),
        message: text("message"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_tungstenite::accept_async;

    use super::*;
    use crate::experiments::workload::run::testing::block_on;

    /// A browser that says these lines after the first command, then closes.
    async fn browser(lines: Vec<Value>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = accept_async(stream).await.unwrap();
            let _command = socket.next().await;
            for line in lines {
                socket.send(Message::text(line.to_string())).await.unwrap();
            }
            socket.close(None).await.unwrap();
        });
        address
    }

    fn said(lines: Vec<Value>) -> (Result<Value, Unanswered>, Vec<String>) {
        block_on(async {
            let address = browser(lines).await;
            let mut session = Session::connect(address, "/session").await.unwrap();
            let mut heard = Vec::new();
            let result = session
                .call("a.b", &json!({}), &mut |method, event| {
                    heard.push(format!("{method} {event}"))
                })
                .await;
            (result, heard)
        })
    }

    #[test]
    fn events_that_come_before_an_answer_are_heard() {
        let event = json!({ "type": "event", "method": "network.fetchError", "params": 5 });
        let answer = json!({ "type": "success", "id": 1, "result": { "x": 2 } });
        let (result, heard) = said(vec![event, answer]);
        assert_eq!(result, Ok(json!({ "x": 2 })));
        assert_eq!(heard, ["network.fetchError 5"]);
    }

    #[test]
    fn a_refusal_is_told_in_the_browsers_words() {
        let (result, _) = said(vec![
            json!({ "type": "error", "id": 1, "error": "unknown error", "message": "no" }),
        ]);
        assert_eq!(result.unwrap_err().to_string(), "unknown error: no");
    }

    #[test]
    fn a_session_that_ends_before_its_answer_is_gone() {
        let (result, _) = said(vec![json!({ "type": "success", "id": 7 })]);
        assert!(matches!(result, Err(Unanswered::Gone(_))), "{result:?}");
    }
}
