//! Where a subject's processes run: the hosts of a network. The lab's namespaces are one; tests have another that is just this machine.

use std::{collections::BTreeMap, fs::File, io, path::Path};

use crate::{
    netns::{Lab, Process},
    topology::Addresses,
};

/// A set of named hosts in which programs can be started.
pub trait Site {
    /// The addresses of a host; `None` if there is no such host.
    fn addresses(&self, host: &str) -> Option<Addresses>;

    /// Starts a program inside a host, in a process group of its own.
    ///
    /// # Errors
    /// If it cannot be started.
    fn spawn(&self, host: &str, program: Program<'_>) -> io::Result<Process>;

    /// Calls `look` on a thread whose network is the host's, and hands on what it says.
    ///
    /// # Errors
    /// Those of `look`, or if no such thread can be had.
    fn inside(&self, host: &str, look: Look) -> io::Result<bool>;
}

/// A question that is asked inside a host.
pub type Look = Box<dyn FnOnce() -> io::Result<bool> + Send>;

/// What is to be started.
#[derive(Debug)]
pub struct Program<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// Added to the lab's own environment for processes.
    pub env: &'a BTreeMap<String, String>,
    /// Where it runs.
    pub dir: &'a Path,
    /// Where its stdout goes.
    pub out: File,
    /// Where its stderr goes.
    pub log: File,
}

impl Site for Lab {
    fn addresses(&self, host: &str) -> Option<Addresses> {
        Some(self.host(host)?.addresses)
    }

    fn spawn(&self, host: &str, program: Program<'_>) -> io::Result<Process> {
        let none = || io::Error::other(format!("there is no host {host:?}"));
        let mut launch = self.host(host).ok_or_else(none)?.command(program.command);
        for (name, value) in program.env {
            launch = launch.env(name, value);
        }
        let launch = launch.directory(program.dir);
        launch.stdout(program.out).stderr(program.log).spawn()
    }

    fn inside(&self, host: &str, look: Look) -> io::Result<bool> {
        let none = || io::Error::other(format!("there is no host {host:?}"));
        self.host(host).ok_or_else(none)?.enter(look)?
    }
}
