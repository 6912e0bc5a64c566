//! How other commands reach the process of `up`: a socket in the run directory that only its owner may use, one line of JSON each way.
//! `daemon` serves it; `down` and `status` ask. The questions are [`Command`]s.

use std::{
    fs, io,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream as Plain},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};

/// How long a question may take to arrive.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long `down` may take: relays that are gone do not hold it up.
const LONGEST: Duration = Duration::from_secs(30);

/// Questions that are answered at once; who asks more often waits.
const AT_ONCE: usize = 8;

/// Octets of a question.
const LONGEST_LINE: u64 = 4096;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Command {
    /// How it is doing.
    Status,
    /// To undo everything and end; the answer comes when that is done.
    Down,
}

#[derive(Serialize, Deserialize)]
struct Line {
    command: Command,
}

/// A question and where its answer goes.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) command: Command,
    pub(super) answer: oneshot::Sender<Value>,
}

/// Where it is.
pub(crate) fn path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.sock"))
}

/// Gone when it is dropped.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    questions: mpsc::Receiver<Asked>,
    serving: tokio::task::JoinHandle<()>,
    open: Arc<Semaphore>,
}

impl Control {
    /// Listens. One that a dead process left is replaced: we hold the lock.
    pub(super) fn listen(run_dir: &Path, name: &str) -> io::Result<Self> {
        let path = path(run_dir, name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let (asked, questions) = mpsc::channel(AT_ONCE);
        let open = Arc::new(Semaphore::new(AT_ONCE));
        Ok(Self {
            path,
            questions,
            serving: tokio::spawn(serve(listener, asked, Arc::clone(&open))),
            open,
        })
    }

    /// The next question.
    pub(super) async fn asked(&mut self) -> Asked {
        match self.questions.recv().await {
            Some(asked) => asked,
            None => std::future::pending().await,
        }
    }

    /// Waits until the answers that were given are on their way.
    pub(super) async fn answered(&self) {
        let all = u32::try_from(AT_ONCE).unwrap_or(u32::MAX);
        drop(timeout(PATIENCE / 5, self.open.acquire_many(all)).await);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.serving.abort();
        // Whoever comes next replaces it anyway.
        fs::remove_file(&self.path).unwrap_or_default();
    }
}

async fn serve(listener: UnixListener, asked: mpsc::Sender<Asked>, open: Arc<Semaphore>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files: the next one may have more luck.
            tokio::time::sleep(PATIENCE / 5).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&open).acquire_owned().await else {
            return;
        };
        let asked = asked.clone();
        tokio::spawn(async move {
            if let Err(error) = talk(stream, &asked).await {
                tracing::debug!(%error, "a question was not answered");
            }
            drop(permit);
        });
    }
}

async fn talk(mut stream: UnixStream, asked: &mpsc::Sender<Asked>) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut line = String::new();
    let mut read = tokio::io::BufReader::new(read.take(LONGEST_LINE));
    timeout(PATIENCE, read.read_line(&mut line)).await??;
    let reply = match serde_json::from_str::<Line>(&line) {
        Ok(Line { command }) => pass_on(command, asked).await,
        Err(error) => json!({"failed": format!("not a question: {error}")}),
    };
    let reply = format!("{reply}\n");
    timeout(PATIENCE, write.write_all(reply.as_bytes())).await??;
    Ok(())
}

async fn pass_on(command: Command, asked: &mpsc::Sender<Asked>) -> Value {
    let ending = || json!({"failed": "it is ending"});
    let (answer, answered) = oneshot::channel();
    if asked.send(Asked { command, answer }).await.is_err() {
        return ending();
    }
    answered.await.unwrap_or_else(|_| ending())
}

/// Asks the process that listens at `path`; `None` if nobody does.
pub(crate) fn ask(path: &Path, command: Command) -> io::Result<Option<Value>> {
    let mut stream = match Plain::connect(path) {
        Ok(stream) => stream,
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(LONGEST))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(&Line { command })?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    match reply.is_empty() {
        true => Ok(None),
        false => Ok(Some(serde_json::from_str(&reply)?)),
    }
}

fn is_nobody(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn asked_from_outside(path: PathBuf, command: Command) -> io::Result<Option<Value>> {
        let ask = move || ask(&path, command);
        tokio::task::spawn_blocking(ask).await.expect("no panic")
    }

    #[tokio::test]
    async fn a_question_is_answered_and_only_the_owner_may_ask() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = path(directory.path(), "hoplite7");
        fs::write(&path, "left by a dead one").expect("written");
        let mut control = Control::listen(directory.path(), "hoplite7").expect("listens");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let asking = tokio::spawn(asked_from_outside(path.clone(), Command::Down));
        let asked = control.asked().await;
        assert_eq!(asked.command, Command::Down);
        asked.answer.send(json!({"state": "down"})).expect("heard");
        control.answered().await;
        let answer = asking.await.expect("no panic").expect("asked");
        assert_eq!(answer, Some(json!({"state": "down"})));
        drop(control);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn nobody_is_told_from_nonsense() {
        let directory = tempfile::tempdir().expect("a directory");
        let nobody = asked_from_outside(path(directory.path(), "x"), Command::Status).await;
        assert_eq!(nobody.expect("no failure"), None);
        let control = Control::listen(directory.path(), "x").expect("listens");
        let mut stream = UnixStream::connect(&control.path).await.expect("connects");
        stream
            .write_all(b"{\"command\":\"fly\"}\n")
            .await
            .expect("written");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.expect("read");
        assert!(reply.contains("not a question"), "{reply}");
    }
}
