//! Marks with a server that relays share: a few connections, each with many requests under way, opened again when they end.
//!
//! A task for each connection dials, lets the client's library run, asks now and then whether the server is still there, and dials again after a
//! pause. A task for each token waits for its answer, also when nobody does any more: what is under way has a place in the queue. A connection that
//! leaves one without an answer for twice the deadline is given up, and with it all that is under way on it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    Asker, KEPT, Mark, Reports, SpentError,
    server::{Client, ServerError, SpentServer},
};
use crate::KeyDirectory;

/// The pause after a connection's end, doubled after each that follows at once, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long connecting and logging in may take.
const GREETING: Duration = Duration::from_secs(5);
/// How often a connection is asked whether its server is there.
const PING: Duration = Duration::from_secs(5);
/// How often what has ended is looked for, and the pause between two batches of it.
const FORGET: Duration = Duration::from_secs(3600);
const BATCH_PAUSE: Duration = Duration::from_millis(100);

/// The marks, and what keeps their connections open until it is dropped.
#[derive(Debug)]
pub(super) struct Store {
    lines: Arc<Lines>,
    /// Until when the marks of a key are kept, in seconds since 1970; without an end, for ever.
    until: HashMap<[u8; 32], u64>,
    tasks: Vec<AbortHandle>,
}

/// The connections as those see them who ask.
#[derive(Debug)]
struct Lines {
    states: watch::Sender<Vec<Line>>,
    /// Whose turn it is.
    turn: AtomicUsize,
    deadline: Duration,
}

#[derive(Clone, Debug)]
enum Line {
    /// It will be there in a moment: who asks waits, up to his deadline.
    Awaited,
    Open(Arc<Connection>),
    /// Dialling has failed; it is tried again beside.
    Down(ServerError),
}

#[derive(Debug)]
struct Connection {
    client: Client,
    /// Wakes its task to give it up.
    broken: Notify,
    /// It has answered something since it was opened.
    has_answered: AtomicBool,
}

impl Store {
    pub(super) fn new(
        server: SpentServer,
        keys: &KeyDirectory,
        (connections, deadline): (usize, Duration),
        reports: &Arc<Reports>,
    ) -> Self {
        let connections = connections.max(1);
        let lines = Arc::new(Lines {
            states: watch::Sender::new(vec![Line::Awaited; connections]),
            turn: AtomicUsize::new(0),
            deadline,
        });
        let server = Arc::new(server);
        let task = |number| {
            let driver = Driver {
                number,
                server: Arc::clone(&server),
                lines: Arc::clone(&lines),
                reports: Arc::clone(reports),
            };
            tokio::spawn(driver.run()).abort_handle()
        };
        let tasks = (0..connections).map(task).collect();
        let until = ends(keys).into_iter();
        Self {
            lines,
            until: until
                .map(|(id, end)| (id, end.saturating_add(KEPT)))
                .collect(),
            tasks,
        }
    }

    /// Marks beside, and tells who asks.
    pub(super) fn mark(&self, mark: Mark, asker: Asker) {
        let until = self.until.get(&mark.key).copied();
        if until.is_some_and(|until| until <= unix_time()) {
            // Its mark may be forgotten.
            return asker.tell(Ok(false));
        }
        let lines = Arc::clone(&self.lines);
        tokio::spawn(async move {
            asker.tell(lines.mark(&mark, until).await);
        });
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Lines {
    async fn mark(&self, mark: &Mark, until: Option<u64>) -> Result<bool, SpentError> {
        let connection = timeout(self.deadline, self.open()).await;
        let connection = connection.map_err(|_| SpentError::Late)??;
        let marked = timeout(self.deadline * 2, connection.client.mark(mark, until)).await;
        match marked {
            Ok(Ok(fresh)) => {
                connection.has_answered.store(true, Ordering::Relaxed);
                Ok(fresh)
            }
            Ok(Err(error)) => {
                connection.broken.notify_one();
                Err(error.into())
            }
            Err(_) => {
                connection.broken.notify_one();
                Err(SpentError::Late)
            }
        }
    }

    /// One of the connections, each in its turn; waits while there may be one in a moment.
    async fn open(&self) -> Result<Arc<Connection>, ServerError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut states = self.states.subscribe();
        let decided = |lines: &Vec<Line>| {
            let open = |line: &Line| matches!(line, Line::Open(_));
            lines.iter().any(open) || !lines.iter().any(|line| matches!(line, Line::Awaited))
        };
        let lines = states.wait_for(decided).await;
        let lines = lines.map_err(|_| ServerError::Closed)?;
        let mut why = ServerError::Closed;
        for line in lines
            .iter()
            .cycle()
            .skip(turn % lines.len())
            .take(lines.len())
        {
            match line {
                Line::Open(connection) => return Ok(Arc::clone(connection)),
                Line::Down(error) => why = error.clone(),
                Line::Awaited => {}
            }
        }
        Err(why)
    }
}

/// Keeps one connection open.
struct Driver {
    number: usize,
    server: Arc<SpentServer>,
    lines: Arc<Lines>,
    reports: Arc<Reports>,
}

impl Driver {
    async fn run(self) {
        let mut pause = PAUSE;
        loop {
            let connected = timeout(GREETING, self.server.connect()).await;
            match connected.unwrap_or(Err(ServerError::Mute)) {
                Ok((client, protocol)) => {
                    let connection = Arc::new(Connection {
                        client,
                        broken: Notify::new(),
                        has_answered: AtomicBool::new(false),
                    });
                    self.set(Line::Open(Arc::clone(&connection)));
                    self.reports.tell(Ok(()));
                    let why = tokio::select! {
                        why = protocol => why,
                        () = connection.broken.notified() => ServerError::Closed,
                        why = self.keep(&connection) => why,
                    };
                    if connection.has_answered.load(Ordering::Relaxed) {
                        pause = PAUSE;
                        self.set(Line::Awaited);
                    } else {
                        self.set(Line::Down(why));
                    }
                }
                Err(error) => {
                    self.set(Line::Down(error.clone()));
                    self.reports.tell(Err(&error.into()));
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn set(&self, line: Line) {
        self.lines.states.send_modify(|lines| {
            if let Some(mine) = lines.get_mut(self.number) {
                *mine = line;
            }
        });
    }

    /// Until the server does not answer.
    async fn keep(&self, connection: &Connection) -> ServerError {
        let (client, deadline) = (&connection.client, self.lines.deadline);
        let mut forget_at = Instant::now();
        loop {
            sleep(PING).await;
            match timeout(deadline, client.ping()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(_) => return ServerError::Mute,
            }
            connection.has_answered.store(true, Ordering::Relaxed);
            self.reports.tell(Ok(()));
            if self.number == 0 && forget_at <= Instant::now() {
                forget_at = Instant::now() + FORGET;
                loop {
                    match client.forget(unix_time()).await {
                        Ok(true) => sleep(BATCH_PAUSE).await,
                        // It has no right to, or another relay is at it: next time.
                        Ok(false) | Err(ServerError::Refuses(_)) => break,
                        Err(error) => return error,
                    }
                }
            }
        }
    }
}

/// When each key's tokens are taken no more, in seconds since 1970: a key makes them until the next one begins, and they are taken for as long again.
/// The last key's epoch is taken to be as long as the one before; where there is one key alone, its end is not known.
fn ends(keys: &KeyDirectory) -> Vec<([u8; 32], u64)> {
    let mut keys: Vec<_> = keys
        .keys
        .iter()
        .map(|listed| (listed.not_before, *listed.key.id()))
        .collect();
    keys.sort_unstable();
    let mut starts: Vec<_> = keys.iter().map(|(start, _)| *start).collect();
    starts.dedup();
    let [.., before, last] = starts.as_slice() else {
        return Vec::new();
    };
    let longest = last - before;
    let of = |(start, id): (u64, [u8; 32])| {
        let next = starts.iter().find(|other| **other > start);
        let epoch = next.map_or(longest, |next| next - start);
        (id, start.saturating_add(epoch.saturating_mul(2)))
    };
    keys.into_iter().map(of).collect()
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

#[cfg(test)]
mod tests;
