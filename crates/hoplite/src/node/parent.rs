//! The parent's side of a node: starts it, waits until it is ready, ends it.
//! `testbed` uses it.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use super::{Order, Ready};
use crate::errors::Failure;

/// How long a node may take to end by itself before it is killed.
const FAREWELL: Duration = Duration::from_secs(2);

/// A running node. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    stdin: Option<ChildStdin>,
    ready: Ready,
}

impl Node {
    /// Starts a process of this program and waits until it is ready.
    pub(crate) fn start(order: &Order) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(
                "starting a process of its own",
                error,
                "run it where processes may start others",
            )
        };
        let mut child = spawn().map_err(failed)?;
        let (stdin, answer) = ask(&mut child, order).map_err(failed)?;
        let mut node = Self {
            child,
            stdin: Some(stdin),
            ready: nowhere(),
        };
        node.ready = serde_json::from_str(&answer).map_err(|_| {
            let remedy = "see its message above";
            Failure::new(
                "starting a process of its own",
                "it ended before it was ready",
                remedy,
            )
        })?;
        Ok(node)
    }

    /// Where it listens, and its pin.
    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait(&mut self) -> std::io::Result<()> {
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > FAREWELL {
                self.child.kill()?;
                return self.child.wait().map(drop);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stdin.take());
        drop(self.wait());
    }
}

fn nowhere() -> Ready {
    Ready {
        listen: ([0, 0, 0, 0], 0).into(),
        pin: None,
        onion: None,
    }
}

fn spawn() -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg("__node")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

fn ask(child: &mut Child, order: &Order) -> std::io::Result<(ChildStdin, String)> {
    let gone = || std::io::Error::other("it has no pipes");
    let mut stdin = child.stdin.take().ok_or_else(gone)?;
    let stdout = child.stdout.take().ok_or_else(gone)?;
    let mut line = serde_json::to_string(order)?;
    line.push('\n');
    stdin.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stdout).read_line(&mut answer)?;
    Ok((stdin, answer))
}
