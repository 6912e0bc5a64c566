//! What readers and shells want to know of a program, written from its own command line: a man page for each command, and completions for bash, zsh and
//! fish. They lie as below `/usr/share`, where packages put them. What the command line hides is in none of them.

use std::{fs, io, path::Path};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// Writes all of it below `share`, into directories that are made where they are not there.
///
/// # Errors
/// A directory cannot be made, or a file not be written.
pub fn write(command: &Command, share: &Path) -> io::Result<()> {
    let mut built = command.clone().disable_help_subcommand(true);
    built.build();
    let source = format!(
        "{} {}",
        built.get_name(),
        built.get_version().unwrap_or_default()
    );
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    write_pages(&built, &source, &pages)?;
    let name = command.get_name();
    for (shell, directory, file) in [
        (Shell::Bash, "bash-completion/completions", name.to_owned()),
        (Shell::Zsh, "zsh/site-functions", format!("_{name}")),
        (
            Shell::Fish,
            "fish/vendor_completions.d",
            format!("{name}.fish"),
        ),
    ] {
        let directory = share.join(directory);
        fs::create_dir_all(&directory)?;
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut shown(command), name, &mut script);
        fs::write(directory.join(file), script)?;
    }
    Ok(())
}

/// The page of a command, and those of its subcommands: `hoplite.1`, `hoplite-relay.1`.
fn write_pages(command: &Command, source: &str, directory: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_pages(subcommand, source, directory)?;
    }
    let man = Man::new(command.clone()).source(source).manual("Hoplite");
    man.generate_to(directory).map(drop)
}

/// The command as its help shows it. Generators of completions would offer what is hidden as well.
fn shown(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let subcommands = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(command.get_name().to_owned())
        .disable_help_subcommand(true)
        .args(arguments.cloned())
        .subcommands(subcommands.map(shown));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn program() -> Command {
        let hidden = Arg::new("backdoor").long("backdoor").hide(true);
        let port = Arg::new("port").long("port").help("Where it listens.");
        let serve = Command::new("serve").about("Serves.").arg(port).arg(hidden);
        Command::new("example")
            .version("1.2")
            .about("An example.")
            .subcommand(serve)
            .subcommand(Command::new("__secret").hide(true))
    }

    /// Every file below, by its path, with its text.
    fn written() -> Vec<(String, String)> {
        let share = tempfile::tempdir().expect("a directory");
        write(&program(), share.path()).expect("written");
        let mut files = Vec::new();
        let mut directories = vec![share.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    let name = path.strip_prefix(share.path()).expect("below");
                    let text = fs::read_to_string(&path).expect("a text");
                    files.push((name.display().to_string(), text));
                }
            }
        }
        files.sort();
        files
    }

    #[test]
    fn each_command_has_a_page_and_each_shell_its_completions() {
        let files = written();
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        let wanted = [
            "bash-completion/completions/example",
            "fish/vendor_completions.d/example.fish",
            "man/man1/example-serve.1",
            "man/man1/example.1",
            "zsh/site-functions/_example",
        ];
        assert_eq!(names, wanted);
        for (name, text) in &files {
            let page = name.ends_with("example.1");
            assert!(page || text.contains("port"), "{name}: {text}");
            assert!(text.contains("serve"), "{name}: {text}");
        }
    }

    #[test]
    fn pages_name_the_program_and_its_version() {
        for (name, text) in written().iter().filter(|(name, _)| name.ends_with(".1")) {
            assert!(text.contains("\"example 1.2\""), "{name}: {text}");
        }
    }

    #[test]
    fn what_is_hidden_is_nowhere() {
        for (name, text) in written() {
            assert!(!text.contains("secret"), "{name}: {text}");
            assert!(!text.contains("backdoor"), "{name}: {text}");
        }
    }
}
