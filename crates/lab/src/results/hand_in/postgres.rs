//! Results in a database of PostgreSQL, in the schema `hoplite_lab`: a directory's results are one transaction.
//!
//! A database that is away, restarts or refuses more connections is asked again until the patience is over; nothing of a transaction that did not
//! come to its end is there. An advisory lock makes those that come at once wait for each other.

use std::{
    collections::{HashMap, HashSet},
    env, fmt,
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::SinkExt;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    runtime::Builder,
    time::{sleep, timeout},
};
use tokio_postgres::{
    Client, NoTls, Transaction,
    config::{Host, SslMode},
    error::SqlState,
};
use tokio_rustls::TlsConnector;

use super::{
    Counts, Rank, Repetition, Source, entry_for, of_another_version,
    tables::{self, Entry, Kind, Named, Part, Row, Table, Value},
    wrong,
};
use crate::{errors::Failure, results::store::Machine};

/// An identity that other users of advisory locks hardly have: "lab" beside the one of Hoplite's spent tokens, "hoplite" as a number.
const LOCK: i64 = 29_395_926_223_778_918;

/// PostgreSQL's SSLRequest (its protocol, "SSL Session Encryption"): a length and a number.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// From one try to the next; it doubles.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];

/// An answer may take as long, however little the patience.
const SOON: Duration = Duration::from_secs(1);

/// Bytes of rows that are sent at once.
const BURST: usize = 64 << 10;

/// What holds between the rows of these tables.
const CONSTRAINTS: [(&str, &str); 8] = [
    ("campaign", "PRIMARY KEY (id)"),
    ("machine", "PRIMARY KEY (id)"),
    (
        "run",
        "PRIMARY KEY (campaign, id), UNIQUE (campaign, parameters, subject, repetition),
         FOREIGN KEY (campaign) REFERENCES hoplite_lab.campaign",
    ),
    ("attempt", "PRIMARY KEY (campaign, run, number)"),
    ("metric", ""),
    ("process", ""),
    ("link", ""),
    ("sample", ""),
];

/// A database, and how one logs in there.
#[derive(Clone)]
pub(crate) struct Database {
    host: Endpoint,
    tls: Option<(PathBuf, ServerName<'static>)>,
    login: tokio_postgres::Config,
}

#[derive(Clone)]
enum Endpoint {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Database {
    /// Reads a URL. `sslmode=require` (or `verify-full`, the same here) wants `sslrootcert`; PGPASSWORD is the password of a URL that has none.
    pub(crate) fn parse(url: &str) -> Result<Self, Failure> {
        const FORM: &str =
            "write such as postgres://USER@HOST:PORT/DATABASE?sslmode=require&sslrootcert=CA.pem";
        let (url, root) = without(url, "sslrootcert");
        if url.contains("sslmode=prefer") || url.contains("sslmode=allow") {
            let why = "who stands between would decide about sslmode=prefer and allow";
            return Err(wrong(why, "write sslmode=require or disable"));
        }
        let url = url.replace("sslmode=verify-full", "sslmode=require");
        let parsed = url.parse::<tokio_postgres::Config>();
        let mut login = parsed.map_err(|_| wrong("it is no URL of PostgreSQL", FORM))?;
        if login.get_user().is_none() || login.get_dbname().is_none() {
            return Err(wrong("the URL names no user or no database", FORM));
        }
        let ([host], []) = (login.get_hosts(), login.get_hostaddrs()) else {
            return Err(wrong("the URL does not name one host", FORM));
        };
        let port = login.get_ports().first().copied().unwrap_or(5432);
        let host = match host {
            Host::Tcp(host) => Endpoint::Tcp(host.clone(), port),
            Host::Unix(place) => Endpoint::Unix(place.join(format!(".s.PGSQL.{port}"))),
        };
        let tls = match (login.get_ssl_mode(), &host, root) {
            (SslMode::Require, Endpoint::Tcp(name, _), Some(root)) => {
                let name = ServerName::try_from(name.trim_matches(['[', ']']).to_owned());
                let name = name.map_err(|_| wrong("for TLS the host needs a name", FORM))?;
                Some((PathBuf::from(root), name))
            }
            (SslMode::Require, ..) | (_, _, Some(_)) => {
                let why = "TLS takes sslmode=require, sslrootcert and a host that is no socket";
                return Err(wrong(why, FORM));
            }
            _ => None,
        };
        // It is over before the library begins.
        login.ssl_mode(SslMode::Disable);
        if let (None, Some(password)) = (login.get_password(), env::var_os("PGPASSWORD")) {
            login.password(password.as_encoded_bytes());
        }
        if login.get_application_name().is_none() {
            login.application_name("hoplite-lab");
        }
        Ok(Self { host, tls, login })
    }
}

/// A URL without a parameter, and what that was.
fn without(url: &str, parameter: &str) -> (String, Option<String>) {
    let Some((head, query)) = url.split_once('?') else {
        return (url.to_owned(), None);
    };
    let (mut rest, mut found) = (Vec::new(), None);
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some((name, value)) if name == parameter => found = Some(value.to_owned()),
            _ => rest.push(pair),
        }
    }
    (format!("{head}?{}", rest.join("&")), found)
}

/// Without the user and the password.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.login.get_dbname().unwrap_or_default();
        match &self.host {
            Endpoint::Tcp(host, port) => write!(f, "postgres://{host}:{port}/{name}"),
            Endpoint::Unix(path) => write!(f, "postgres:{}/{name}", path.display()),
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hands in a directory's results, and says to which campaign there.
pub(super) fn hand_in(
    database: &Database,
    source: &Source,
    patience: Duration,
) -> Result<(String, Counts), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new("starting", error, "raise the limit of files"))?;
    let until = Instant::now() + patience;
    let [mut pause, longest] = PAUSES;
    loop {
        let tried = runtime.block_on(once(database, source, patience));
        let fault = match tried {
            Ok(done) => return Ok(done),
            Err(fault) => fault,
        };
        if !fault.passes() || Instant::now() + pause > until {
            return Err(fault.failure(database, &source.root));
        }
        runtime.block_on(async { sleep(pause).await });
        pause = (pause * 2).min(longest);
    }
}

/// Why a try ended.
#[derive(Debug)]
enum Fault {
    /// The results themselves, or what is there, are not as they should be.
    Ours(Failure),
    /// It is not there, or went away.
    Away(String),
    /// It is there and does not answer.
    Mute,
    /// It said no, with its code.
    Refused(SqlState, String),
    /// What it wants or says, nobody here knows.
    Odd(String),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Ours(failure)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Away(error.to_string())
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(said) = error.as_db_error() {
            let detail = said.detail().map(|detail| format!(", {detail}"));
            let text = format!("{}{}", said.message(), detail.unwrap_or_default());
            return Self::Refused(said.code().clone(), text);
        }
        let source = std::error::Error::source(&error);
        let away = error.is_closed() || source.is_some_and(|source| source.is::<io::Error>());
        let source = source.map(|source| format!(": {source}"));
        let why = format!("{error}{}", source.unwrap_or_default());
        if away {
            Self::Away(why)
        } else {
            Self::Odd(why)
        }
    }
}

impl Fault {
    /// Whether it may be over soon, by itself.
    fn passes(&self) -> bool {
        match self {
            Self::Ours(_) | Self::Odd(_) => false,
            Self::Away(_) | Self::Mute => true,
            Self::Refused(code, _) => {
                // Shut down, starting, too many connections, a deadlock.
                ["57P01", "57P02", "57P03", "53300", "40P01", "40001"].contains(&code.code())
                    || code.code().starts_with("08")
            }
        }
    }

    fn failure(self, database: &Database, root: &Path) -> Failure {
        let (why, remedy) = match self {
            Self::Ours(failure) => return failure,
            Self::Away(why) => (why, "see that the database is there"),
            Self::Mute => (
                "it does not answer".to_owned(),
                "see that the database is well, or take more --patience",
            ),
            Self::Refused(code, why) => (format!("{why} ({})", code.code()), remedy(code.code())),
            Self::Odd(why) => (
                why,
                "see to the user and the password in --to, or PGPASSWORD",
            ),
        };
        let remedy = format!(
            "{remedy}; then hand in again by `hoplite-lab hand-in {} --to …`: nothing of it is there in part",
            root.display()
        );
        Failure::new(format!("handing in to {database}"), why, remedy)
    }
}

/// What helps, by PostgreSQL's codes (its appendix A).
fn remedy(code: &str) -> &'static str {
    match code {
        "53100" => "free some space on the database's disk",
        "42501" => {
            "let the user make the schema hoplite_lab, or give the rights that docs/results.md lists"
        }
        "3D000" => "make the database",
        "55P03" => "wait for the other one that hands in, or take more --patience",
        "25006" => "name the database's primary server",
        "42P01" | "42703" | "42804" | "3F000" => {
            "the tables are not those of this version: use another database, or the hoplite-lab that made them"
        }
        _ if code.starts_with("28") => "see to the user and the password in --to, or PGPASSWORD",
        _ => "see to it",
    }
}

/// One try, from the connection to the transaction's end.
async fn once(
    database: &Database,
    source: &Source,
    patience: Duration,
) -> Result<(String, Counts), Fault> {
    let mut session = Session::open(database, patience.max(SOON)).await?;
    session.hand_in(source, &database.to_string()).await
}

/// A connection, and how long each of its answers is waited for.
struct Session {
    client: Client,
    patience: Duration,
}

impl Session {
    async fn open(database: &Database, patience: Duration) -> Result<Self, Fault> {
        let connected = async {
            let mut stream = database.dial().await?;
            if let Some((root, name)) = &database.tls {
                stream = secured(stream, root, name.clone()).await?;
            }
            let connected = database.login.connect_raw(stream, NoTls).await;
            connected.map_err(Fault::from)
        };
        let connected = timeout(patience, connected).await;
        let (client, connection) = connected.map_err(|_| Fault::Mute)??;
        // It ends with the client; what it died of, the client says.
        tokio::spawn(async move { connection.await.ok() });
        Ok(Self { client, patience })
    }

    async fn hand_in(&mut self, source: &Source, place: &str) -> Result<(String, Counts), Fault> {
        let patience = self.patience;
        let transaction = within(patience, self.client.transaction()).await?;
        let tables = Tables {
            transaction,
            patience,
            place: place.to_owned(),
        };
        tables.lock().await?;
        tables.make().await?;
        let (entry, changed) = entry_for(&source.campaign, tables.campaigns().await?);
        if changed {
            tables.campaign(&entry).await?;
        }
        let news = source.news(&tables.there(&entry.id).await?);
        let machines: Vec<&Machine> = source.machines_of(&news.repetitions).collect();
        tables.machines(&machines).await?;
        tables.take_out(&entry.id, &news.replaced).await?;
        for part in Part::ALL {
            let rows = |one: &&Repetition| part.rows(&entry.id, one, &source.root);
            tables
                .copy(&part.table(), news.repetitions.iter().map(rows))
                .await?;
        }
        within(patience, tables.transaction.commit()).await?;
        Ok((entry.id, news.counts))
    }
}

/// An answer, if it comes in time.
async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    let answer = timeout(patience, answer).await;
    answer.map_err(|_| Fault::Mute)?.map_err(Fault::from)
}

/// The tables, in a transaction.
struct Tables<'a> {
    transaction: Transaction<'a>,
    patience: Duration,
    place: String,
}

impl Tables<'_> {
    async fn run(&self, sql: &str) -> Result<(), Fault> {
        within(self.patience, self.transaction.batch_execute(sql)).await
    }

    /// Waits for others that hand in.
    async fn lock(&self) -> Result<(), Fault> {
        let patience = self.patience.as_millis().clamp(1, 1 << 30);
        let sql = format!(
            "SET LOCAL lock_timeout = {patience}; SELECT pg_advisory_xact_lock({LOCK}); SET LOCAL search_path = hoplite_lab"
        );
        // A moment more than the server waits: it says more.
        let waits = self.transaction.batch_execute(&sql);
        within(self.patience + Duration::from_secs(5), waits).await
    }

    /// Makes what is not there.
    async fn make(&self) -> Result<(), Fault> {
        let all = [tables::campaigns(), tables::machines()].into_iter();
        let all: Vec<Table> = all.chain(Part::ALL.map(Part::table)).collect();
        let there = self.columns().await?;
        if there.is_empty() {
            let sql: Vec<String> = all.iter().map(create).collect();
            return self
                .run(&format!(
                    "CREATE SCHEMA IF NOT EXISTS hoplite_lab; {}",
                    sql.concat()
                ))
                .await;
        }
        // Kinds of workload that are measured later have columns of their own in samples.
        for table in all.iter().filter(|table| table.name == "sample") {
            for (name, kind) in &table.columns {
                if !there.contains(&(table.name.to_owned(), name.clone())) {
                    let kind = sql_kind(*kind);
                    self.run(&format!(
                        "ALTER TABLE {} ADD COLUMN \"{name}\" {kind}",
                        table.name
                    ))
                    .await?;
                }
            }
        }
        Ok(())
    }

    /// Tables of the schema with their columns.
    async fn columns(&self) -> Result<HashSet<(String, String)>, Fault> {
        let sql = "SELECT relname::text, attname::text FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
                   JOIN pg_namespace ON relnamespace = pg_namespace.oid
                   WHERE nspname = 'hoplite_lab' AND relkind = 'r' AND attnum > 0 AND NOT attisdropped";
        let rows = within(self.patience, self.transaction.query(sql, &[])).await?;
        let pair = |row: &tokio_postgres::Row| Ok((row.try_get(0)?, row.try_get(1)?));
        let pairs: Result<_, tokio_postgres::Error> = rows.iter().map(pair).collect();
        Ok(pairs?)
    }

    async fn campaigns(&self) -> Result<Vec<Entry>, Fault> {
        let table = tables::campaigns();
        let as_text = |(name, _): &(String, Kind)| format!("\"{name}\"::text");
        let columns: Vec<String> = table.columns.iter().map(as_text).collect();
        let sql = format!("SELECT {} FROM campaign", columns.join(", "));
        let rows = within(self.patience, self.transaction.query(&sql, &[])).await?;
        let mut found = Vec::new();
        for row in &rows {
            let mut named = Named::new();
            for (place, (name, kind)) in table.columns.iter().enumerate() {
                let text: Option<String> = row.try_get(place)?;
                let value = text.and_then(|text| value(&text, *kind));
                named.insert(name.clone(), value.unwrap_or(Value::Null));
            }
            let entry = Entry::read(&named);
            found.push(entry.ok_or_else(|| of_another_version(&self.place))?);
        }
        Ok(found)
    }

    async fn campaign(&self, entry: &Entry) -> Result<(), Fault> {
        // The runs of a campaign refer to its row.
        let table = tables::campaigns();
        self.run("CREATE TEMPORARY TABLE changed (LIKE campaign) ON COMMIT DROP")
            .await?;
        let changed = Table {
            name: "changed",
            ..table.clone()
        };
        self.copy(&changed, [Ok(vec![entry.row()])].into_iter())
            .await?;
        let columns: Vec<String> = table.columns.iter().map(quoted).collect();
        let set: Vec<String> = columns
            .iter()
            .map(|name| format!("{name} = EXCLUDED.{name}"))
            .collect();
        let (columns, set) = (columns.join(", "), set.join(", "));
        self.run(&format!(
            "INSERT INTO campaign ({columns}) SELECT {columns} FROM pg_temp.changed ON CONFLICT (id) DO UPDATE SET {set}"
        ))
        .await
    }

    async fn machines(&self, machines: &[&Machine]) -> Result<(), Fault> {
        let rows = within(
            self.patience,
            self.transaction.query("SELECT id FROM machine", &[]),
        );
        let there: Result<HashSet<String>, _> =
            rows.await?.iter().map(|row| row.try_get(0)).collect();
        let there = there?;
        let new = machines
            .iter()
            .filter(|machine| !there.contains(&machine.id));
        let rows = new.map(|machine| tables::machine(machine)).collect();
        self.copy(&tables::machines(), [Ok(rows)].into_iter()).await
    }

    /// The repetitions of a campaign that are there, by id.
    async fn there(&self, campaign: &str) -> Result<HashMap<String, Rank>, Fault> {
        let sql = "SELECT id, verdict = 'ok', began FROM run WHERE campaign = $1";
        let rows = within(self.patience, self.transaction.query(sql, &[&campaign])).await?;
        let rank = |row: &tokio_postgres::Row| {
            let (ok, began) = (row.try_get(1)?, row.try_get(2)?);
            Ok((row.try_get(0)?, Rank { ok, began }))
        };
        let there: Result<_, tokio_postgres::Error> = rows.iter().map(rank).collect();
        Ok(there?)
    }

    /// Takes out repetitions that others replace, with all that belongs to them.
    async fn take_out(&self, campaign: &str, runs: &HashSet<&str>) -> Result<(), Fault> {
        let runs: Vec<&str> = runs.iter().copied().collect();
        let sql = "DELETE FROM run WHERE campaign = $1 AND id = ANY ($2)";
        within(
            self.patience,
            self.transaction.execute(sql, &[&campaign, &runs]),
        )
        .await
        .map(|_| ())
    }

    /// Adds rows as they come.
    async fn copy(
        &self,
        table: &Table,
        rows: impl Iterator<Item = Result<Vec<Row>, Failure>>,
    ) -> Result<(), Fault> {
        let columns: Vec<String> = table.columns.iter().map(quoted).collect();
        let sql = format!("COPY {} ({}) FROM STDIN", table.name, columns.join(", "));
        let sink = within(self.patience, self.transaction.copy_in::<_, Bytes>(&sql)).await?;
        let mut sink = Box::pin(sink);
        let mut text = String::new();
        for rows in rows {
            for row in rows? {
                line(&row, &mut text);
                if text.len() >= BURST {
                    let burst = Bytes::from(std::mem::take(&mut text));
                    within(self.patience, sink.send(burst)).await?;
                }
            }
        }
        within(self.patience, sink.send(Bytes::from(text))).await?;
        within(self.patience, sink.as_mut().finish()).await?;
        Ok(())
    }
}

fn quoted((name, _): &(String, Kind)) -> String {
    format!("\"{name}\"")
}

fn sql_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "text",
        Kind::Json => "jsonb",
        Kind::Whole => "bigint",
        Kind::Real => "double precision",
        Kind::Truth => "boolean",
        Kind::Wholes => "bigint[]",
    }
}

/// The SQL that makes a table.
fn create(table: &Table) -> String {
    let name = table.name;
    let of = table.columns.iter();
    let mut lines: Vec<String> = of
        .map(|(column, kind)| format!("\"{column}\" {}", sql_kind(*kind)))
        .collect();
    let constraint = CONSTRAINTS.iter().find(|(of, _)| *of == name);
    let constraint = constraint.map_or("", |(_, constraint)| *constraint);
    if !constraint.is_empty() {
        lines.push(constraint.to_owned());
    }
    let belongs = table.columns.iter().any(|(column, _)| column == "run");
    if belongs {
        lines.push(
            "FOREIGN KEY (campaign, run) REFERENCES hoplite_lab.run ON DELETE CASCADE".to_owned(),
        );
    }
    let mut sql = format!("CREATE TABLE hoplite_lab.{name} ({});", lines.join(", "));
    if belongs && constraint.is_empty() {
        write!(sql, " CREATE INDEX ON hoplite_lab.{name} (campaign, run);").ok();
    }
    sql
}

/// A row as COPY takes it: fields with tabs between, a backslash before what would end one.
fn line(row: &[Value], to: &mut String) {
    for (place, value) in row.iter().enumerate() {
        if place > 0 {
            to.push('\t');
        }
        match value {
            Value::Null => to.push_str("\\N"),
            Value::Text(text) | Value::Json(text) => escape(text, to),
            Value::Whole(whole) => write!(to, "{whole}").unwrap_or_default(),
            Value::Real(real) => write!(to, "{real:?}").unwrap_or_default(),
            Value::Truth(truth) => to.push(if *truth { 't' } else { 'f' }),
            Value::Wholes(list) => {
                let list: Vec<String> = list.iter().map(i64::to_string).collect();
                write!(to, "{{{}}}", list.join(",")).unwrap_or_default();
            }
        }
    }
    to.push('\n');
}

fn escape(text: &str, to: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => to.push_str("\\\\"),
            '\t' => to.push_str("\\t"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            c => to.push(c),
        }
    }
}

/// A value from its text.
fn value(text: &str, kind: Kind) -> Option<Value> {
    match kind {
        Kind::Text => Some(Value::Text(text.to_owned())),
        Kind::Json => Some(Value::Json(text.to_owned())),
        Kind::Whole => text.parse().ok().map(Value::Whole),
        Kind::Real => text.parse().ok().map(Value::Real),
        Kind::Truth => Some(Value::Truth(text == "true")),
        // No campaign has a list of numbers.
        Kind::Wholes => None,
    }
}

// The connection.

/// A byte stream.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Database {
    #[expect(
        clippy::disallowed_methods,
        reason = "the database is the researcher's own: no flow of a client goes there"
    )]
    async fn dial(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match &self.host {
            Endpoint::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

/// TLS over a stream. PostgreSQL says in one byte whether it has it.
async fn secured(
    mut stream: Box<dyn Stream>,
    root: &Path,
    name: ServerName<'static>,
) -> Result<Box<dyn Stream>, Fault> {
    let tls = trusting(root)?;
    stream.write_all(&SSL_REQUEST).await?;
    if stream.read_u8().await? != b'S' {
        return Err(Fault::Ours(Failure::new(
            "reaching the database",
            "it has no TLS",
            "switch its `ssl` on, or leave sslmode=require out where nobody stands between",
        )));
    }
    let secured = TlsConnector::from(tls).connect(name, stream).await;
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Fault::Ours(Failure::new(
            "reaching the database by TLS",
            error,
            "see that sslrootcert is the authority of its certificate, which has the host's name",
        )),
        _ => Fault::from(error),
    };
    Ok(Box::new(secured.map_err(refused)?))
}

fn trusting(root: &Path) -> Result<Arc<ClientConfig>, Failure> {
    let refused = |why: String| {
        let doing = format!("reading sslrootcert {}", root.display());
        Failure::new(doing, why, "name a PEM file of the authority's certificate")
    };
    let text = fs::read(root).map_err(|error| refused(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refused("there is no certificate in it".to_owned()));
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error.to_string()))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        let failure = Database::parse(url).unwrap_err();
        assert!(matches!(failure, Failure::Wrong(_)), "{url}");
        let text = failure.to_string();
        assert!(!text.contains("secret"), "{text}");
        text
    }

    #[test]
    fn a_url_names_one_host_a_user_and_a_database() {
        let shown = |url: &str| Database::parse(url).unwrap().to_string();
        assert_eq!(shown("postgres://u:secret@h/d"), "postgres://h:5432/d");
        assert_eq!(
            shown("postgresql://u@[::1]:99/d?sslmode=disable"),
            "postgres://::1:99/d"
        );
        assert_eq!(
            shown("postgres://u@/d?host=/run/pg&port=7"),
            "postgres:/run/pg/.s.PGSQL.7/d"
        );
        for wrong in [
            "postgres://h/d",
            "postgres://u:secret@h",
            "postgres://u:secret@a,b/d",
            "postgres://u:secret@h:x/d",
        ] {
            assert!(
                refusal(wrong).contains("write such as postgres://USER@HOST"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn tls_is_asked_for_with_whom_to_trust_or_not_at_all() {
        let url = "postgres://u@db.test/d?sslmode=require&sslrootcert=/etc/ca.pem";
        let database = Database::parse(url).unwrap();
        let (root, name) = database.tls.unwrap();
        assert_eq!(
            (root, name.to_str().into_owned()),
            ("/etc/ca.pem".into(), "db.test".to_owned())
        );
        assert!(Database::parse("postgres://u@h/d").unwrap().tls.is_none());
        for wrong in [
            "sslmode=require",
            "sslrootcert=/etc/ca.pem",
            "sslmode=prefer",
            "sslmode=require&sslrootcert=x&host=/run",
        ] {
            refusal(&format!("postgres://u:secret@h/d?{wrong}"));
        }
    }

    #[test]
    fn no_field_ends_before_its_end() {
        let row = [
            Value::Null,
            Value::Text("a\tb\nc\\N\r".into()),
            Value::Json("{\"k\":\"\\n\"}".into()),
            Value::Whole(-7),
            Value::Real(1e-300),
            Value::Truth(true),
            Value::Wholes(vec![1, -2]),
            Value::Wholes(Vec::new()),
        ];
        let mut text = String::new();
        line(&row, &mut text);
        let expected = "\\N\ta\\tb\\nc\\\\N\\r\t{\"k\":\"\\\\n\"}\t-7\t1e-300\tt\t{1,-2}\t{}\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_may_be_over_soon_is_tried_again_and_nothing_else() {
        let refused = |code| Fault::Refused(SqlState::from_code(code), String::new());
        for code in ["57P01", "57P03", "53300", "08006", "40001"] {
            assert!(refused(code).passes(), "{code}");
        }
        for code in ["28P01", "42501", "53100", "3D000", "55P03", "23505"] {
            assert!(!refused(code).passes(), "{code}");
        }
        assert!(Fault::Away(String::new()).passes() && Fault::Mute.passes());
        assert!(!Fault::Odd(String::new()).passes());
    }

    #[test]
    fn a_database_that_is_away_is_asked_again_and_then_told() {
        let place = tempfile::tempdir().unwrap();
        let source = crate::results::hand_in::examples::source(place.path(), 1);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let callers = std::thread::spawn(move || {
            // Each is shown the door.
            let callers = listener.incoming().take(2);
            callers.filter(|caller| caller.is_ok()).count()
        });
        let url = format!("postgres://u:secret@127.0.0.1:{port}/d");
        let database = Database::parse(&url).unwrap();
        let told = hand_in(&database, &source, Duration::from_secs(2)).unwrap_err();
        let told = told.to_string();
        assert!(told.contains("see that the database is there"), "{told}");
        assert!(!told.contains("secret"), "{told}");
        assert_eq!(callers.join().unwrap(), 2);
    }

    #[test]
    fn a_refusal_is_told_with_what_helps_and_without_the_password() {
        let database = Database::parse("postgres://u:secret@h/d").unwrap();
        let told = |code: &str| {
            let fault = Fault::Refused(SqlState::from_code(code), "no".into());
            fault.failure(&database, Path::new("results/x")).to_string()
        };
        assert!(told("53100").contains("free some space on the database's disk"));
        assert!(told("28P01").contains("PGPASSWORD"));
        assert!(told("42703").contains("use another database"));
        for code in ["53100", "28P01", "XX000"] {
            let told = told(code);
            assert!(
                told.contains("hoplite-lab hand-in results/x --to"),
                "{told}"
            );
            assert!(
                told.contains("nothing of it is there in part") && !told.contains("secret"),
                "{told}"
            );
        }
    }

    #[test]
    fn tables_that_belong_to_repetitions_go_with_them() {
        for part in Part::ALL {
            let sql = create(&part.table());
            assert_eq!(
                sql.contains("ON DELETE CASCADE"),
                part != Part::Run,
                "{sql}"
            );
        }
        assert!(
            create(&Part::Run.table())
                .contains("UNIQUE (campaign, parameters, subject, repetition)")
        );
        assert!(create(&Part::Sample.table()).contains("\"round_trips_us\" bigint[]"));
    }
}
