//! Marks in a table of PostgreSQL. docs/tokens.md shows the SQL and the rights that it needs.

use tokio_postgres::{Error, NoTls, SimpleQueryMessage, Statement, types::Type};

use super::server::{self, Measured, Protocol, ServerError, refuses};

/// An identity that other users of advisory locks hardly have: "hoplite" as a number.
const LOCK: &str = "29395926223778917";
/// The lock keeps two that come at once from making it both. Marks end in about the order in which they came: a BRIN index is a few pages.
const SCHEMA: &str = "
BEGIN;
SELECT pg_advisory_xact_lock(29395926223778917);
CREATE TABLE IF NOT EXISTS hoplite_spent (mark bytea PRIMARY KEY, until bigint);
CREATE INDEX IF NOT EXISTS hoplite_spent_until ON hoplite_spent USING brin (until);
COMMIT;
";
const MISSING: &str = "SELECT to_regclass('hoplite_spent') IS NULL";
const MARK: &str = "INSERT INTO hoplite_spent (mark, until) VALUES ($1, $2) ON CONFLICT DO NOTHING";
/// How many marks are forgotten at once: others of the connection wait for them.
const BATCH: u64 = 1000;

/// A connection whose table is there.
#[derive(Debug)]
pub(super) struct Client {
    client: tokio_postgres::Client,
    mark: Statement,
}

/// Logs in, and makes the table if it is not there.
pub(super) async fn connect(
    login: &tokio_postgres::Config,
    stream: Measured,
) -> Result<(server::Client, Protocol), ServerError> {
    let connected = login.connect_raw(stream, NoTls).await;
    let (client, connection) = connected.map_err(|error| fault(&error))?;
    let mut protocol: Protocol = Box::pin(async move {
        match connection.await {
            Ok(()) => ServerError::Closed,
            Err(error) => fault(&error),
        }
    });
    let ready = async {
        if is_missing(&client).await? {
            client.batch_execute(SCHEMA).await?;
        }
        client.prepare_typed(MARK, &[Type::BYTEA, Type::INT8]).await
    };
    let mark = tokio::select! {
        mark = ready => mark.map_err(|error| fault(&error))?,
        ended = &mut protocol => return Err(ended),
    };
    let client = Client { client, mark };
    Ok((server::Client::Postgres(client), protocol))
}

async fn is_missing(client: &tokio_postgres::Client) -> Result<bool, Error> {
    let told = client.simple_query(MISSING).await?;
    Ok(told.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten() == Some("t"),
        _ => false,
    }))
}

impl Client {
    pub(super) async fn mark(&self, name: &[u8], until: Option<u64>) -> Result<bool, ServerError> {
        let until = until.map(|until| i64::try_from(until).unwrap_or(i64::MAX));
        let marked = self.client.execute(&self.mark, &[&name, &until]).await;
        match marked.map_err(|error| fault(&error))? {
            1 => Ok(true),
            0 => Ok(false),
            _ => Err(ServerError::Nonsense),
        }
    }

    pub(super) async fn ping(&self) -> Result<(), ServerError> {
        let told = self.client.check_connection().await;
        told.map_err(|error| fault(&error))
    }

    pub(super) async fn forget(&self, now: u64) -> Result<bool, ServerError> {
        // One relay at a time, and none waits for another. One whose clock is ahead forgets nothing that others still take.
        let sql = format!(
            "WITH turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock({LOCK}) AS mine)
             DELETE FROM hoplite_spent WHERE ctid = ANY (ARRAY (
             SELECT hoplite_spent.ctid FROM hoplite_spent, turn WHERE mine
             AND until < least($1, extract(epoch FROM now())::bigint) LIMIT {BATCH}))"
        );
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let gone = self.client.execute_typed(&sql, &[(&now, Type::INT8)]).await;
        Ok(gone.map_err(|error| fault(&error))? >= BATCH)
    }
}

fn fault(error: &Error) -> ServerError {
    if let Some(code) = error.code() {
        return refuses(code.code());
    }
    let source = std::error::Error::source(error);
    match source.and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(error) => ServerError::Io(error.kind()),
        None if error.is_closed() => ServerError::Closed,
        None => ServerError::Nonsense,
    }
}
