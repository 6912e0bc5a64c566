//! Marks as keys of a server of Redis's protocol (RESP 2), which lets them expire by itself.

use std::collections::HashMap;

use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, Value,
    aio::MultiplexedConnection,
};

use super::server::{self, Measured, Protocol, ServerError, refuses};

/// What the names of all marks begin with: 24 bytes follow.
const PREFIX: &[u8] = b"hoplite:spent:";

/// A connection to a server that forgets no mark before its time.
#[derive(Debug)]
pub(super) struct Client(MultiplexedConnection);

/// Logs in, and looks whether marks would stay.
pub(super) async fn connect(
    login: &RedisConnectionInfo,
    stream: Measured,
) -> Result<(server::Client, Protocol), ServerError> {
    // What is late is told elsewhere.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connected = MultiplexedConnection::new_with_config(login, stream, config).await;
    let (connection, driver) = connected.map_err(|error| fault(&error))?;
    let mut protocol: Protocol = Box::pin(async move {
        driver.await;
        ServerError::Closed
    });
    let client = Client(connection);
    let evicts = tokio::select! {
        evicts = client.evicts() => evicts?,
        ended = &mut protocol => return Err(ended),
    };
    if evicts {
        return Err(ServerError::Evicts);
    }
    Ok((server::Client::Redis(client), protocol))
}

impl Client {
    async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        command.query_async(&mut self.0.clone()).await
    }

    /// Whether the server drops keys when its memory is full. Where neither question is allowed nobody knows, and it is believed not to.
    async fn evicts(&self) -> Result<bool, ServerError> {
        let mut config = redis::cmd("CONFIG");
        let config = config.arg("GET").arg("maxmemory*");
        let told: Result<HashMap<String, String>, _> =
            config.query_async(&mut self.0.clone()).await;
        if let Some(told) = unless_refused(told)? {
            let told = |key: &str| told.get(key).map(String::as_str);
            return Ok(drops(told("maxmemory"), told("maxmemory-policy")));
        }
        let mut info = redis::cmd("INFO");
        let told: Result<String, _> = info.arg("memory").query_async(&mut self.0.clone()).await;
        let Some(told) = unless_refused(told)? else {
            return Ok(false);
        };
        let value = |key: &str| {
            told.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim))
        };
        Ok(drops(value("maxmemory"), value("maxmemory_policy")))
    }

    pub(super) async fn mark(&self, name: &[u8], until: Option<u64>) -> Result<bool, ServerError> {
        let mut set = redis::cmd("SET");
        set.arg([PREFIX, name].concat()).arg("").arg("NX");
        if let Some(until) = until {
            set.arg("EXAT").arg(until);
        }
        match self.ask(&set).await.map_err(|error| fault(&error))? {
            Value::Okay => Ok(true),
            Value::Nil => Ok(false),
            _ => Err(ServerError::Nonsense),
        }
    }

    pub(super) async fn ping(&self) -> Result<(), ServerError> {
        match self.ask(&redis::cmd("PING")).await {
            Ok(Value::SimpleString(text)) if text == "PONG" => Ok(()),
            Ok(_) => Err(ServerError::Nonsense),
            Err(error) => Err(fault(&error)),
        }
    }
}

/// With a limit and any other policy: all of them may take a mark, which has an end.
fn drops(limit: Option<&str>, policy: Option<&str>) -> bool {
    limit.is_some_and(|limit| limit != "0") && policy.is_some_and(|policy| policy != "noeviction")
}

/// None if the server does not let this user ask.
fn unless_refused<T>(told: Result<T, RedisError>) -> Result<Option<T>, ServerError> {
    match told {
        Ok(told) => Ok(Some(told)),
        Err(error) => match fault(&error) {
            ServerError::Refuses(code) if code != "NOAUTH" => Ok(None),
            fault => Err(fault),
        },
    }
}

fn fault(error: &RedisError) -> ServerError {
    if let Some(code) = error.code() {
        return refuses(code);
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => refuses("WRONGPASS"),
        ErrorKind::Io => {
            let source = std::error::Error::source(error);
            let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
            io.map_or(ServerError::Closed, |io| ServerError::Io(io.kind()))
        }
        _ => ServerError::Nonsense,
    }
}
