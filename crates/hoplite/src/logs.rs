//! The log: to stderr, filtered by `HOPLITE_LOG`, as text or JSON.
//! Started once by `cli`. A disk that is full, a stderr that is closed or a reader that hangs neither kills nor blocks
//! the process: lines wait in a bounded queue, and what does not fit is counted and dropped.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use crate::say::{Complaint, Failure};

/// The variable that sets the filter, in the syntax of `tracing`.
pub(crate) const VARIABLE: &str = "HOPLITE_LOG";

/// Libraries that write addresses and names into their events. They are heard only if the filter names them.
const STRANGERS: [&str; 7] = ["h2", "hickory", "hyper", "quinn", "rustls", "mio", "tokio"];

/// Lines that may wait for a slow stderr; further ones are dropped.
const QUEUE: usize = 1024;

/// How long the end of the process waits for the last lines.
const LINGER: Duration = Duration::from_millis(200);

enum Entry {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Gives the last lines a moment to be written when it is dropped.
#[derive(Debug)]
pub(crate) struct Guard(SyncSender<Entry>);

/// Where `tracing` writes: a queue in front of stderr.
#[derive(Clone)]
struct Queue {
    lines: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

/// One event on its way into the queue.
struct EventWriter {
    queue: Queue,
    text: Vec<u8>,
}

/// Starts the log with `HOPLITE_LOG` or, without it, `default`.
pub(crate) fn start(json: bool, default: &str) -> Result<Guard, Failure> {
    let filter = filter(std::env::var(VARIABLE).ok().as_deref(), default)?;
    let (lines, queue) = sync_channel(QUEUE);
    let dropped = Arc::new(AtomicU64::new(0));
    let writer = Queue {
        lines: lines.clone(),
        dropped: dropped.clone(),
    };
    drop(
        thread::Builder::new()
            .name("log".into())
            .spawn(move || drain(&queue, &dropped, json)),
    );
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(true)
        .with_ansi(!json && io::stderr().is_terminal())
        .log_internal_errors(false)
        .with_writer(writer);
    let done = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.try_init()
    };
    done.map_err(|error| Failure::new("starting the log", error, "please report this"))?;
    Ok(Guard(lines))
}

fn filter(asked: Option<&str>, default: &str) -> Result<EnvFilter, Failure> {
    let text = asked
        .filter(|text| !text.trim().is_empty())
        .unwrap_or(default);
    let filter = EnvFilter::builder().parse(text).map_err(|error| {
        let doing = format!("reading {VARIABLE}");
        let remedy = "use a level (error, warn, info, debug, trace) or target=level,…";
        Failure::Wrong(vec![Complaint::new(doing, error, remedy)])
    })?;
    let unasked = STRANGERS.iter().filter(|name| !text.contains(**name));
    let silence = unasked.filter_map(|name| format!("{name}=off").parse().ok());
    Ok(silence.fold(filter, EnvFilter::add_directive))
}

fn drain(queue: &Receiver<Entry>, dropped: &AtomicU64, json: bool) {
    let mut stderr = io::stderr();
    while let Ok(entry) = queue.recv() {
        match entry {
            Entry::Line(line) => drop(stderr.write_all(&line)),
            Entry::Flush(done) => drop(done.try_send(())),
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            drop(writeln!(stderr, "{}", loss(lost, json)));
        }
    }
}

fn loss(lines: u64, json: bool) -> String {
    let message = format!("{lines} log lines were dropped: stderr is slow");
    if json {
        serde_json::json!({"level": "WARN", "message": message}).to_string()
    } else {
        format!("hoplite: {message}")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (done, wait) = sync_channel(1);
        if self.0.try_send(Entry::Flush(done)).is_ok() {
            wait.recv_timeout(LINGER).unwrap_or_default();
        }
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = EventWriter;

    fn make_writer(&'a self) -> EventWriter {
        EventWriter {
            queue: self.clone(),
            text: Vec::new(),
        }
    }
}

impl Write for EventWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !text.is_empty() && self.queue.lines.try_send(Entry::Line(text)).is_err() {
            self.queue.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_reported_with_its_variable() {
        let failure = filter(Some("hoplite=loud"), "info").expect_err("no such level");
        assert!(
            failure
                .to_string()
                .starts_with("hoplite: reading HOPLITE_LOG: "),
            "{failure}"
        );
    }

    #[test]
    fn libraries_that_name_people_are_silent_unless_they_are_asked_for() {
        let text = |asked| filter(Some(asked), "info").expect("right").to_string();
        assert!(text("debug").contains("hickory=off"));
        let asked = text("info,hickory_net=trace");
        assert!(asked.contains("hickory_net=trace") && !asked.contains("hickory=off"));
    }

    #[test]
    fn lines_that_do_not_fit_are_counted_and_nobody_waits() {
        let (lines, _stuck) = sync_channel(1);
        let queue = Queue {
            lines,
            dropped: Arc::default(),
        };
        for _ in 0..3 {
            writeln!(queue.make_writer(), "line").expect("never fails");
        }
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 2);
    }
}
