//! Secrets in files of their own, which only their owner, and perhaps his group, may read; keys are hexadecimal digits.

use std::{fs::File, io::Read, path::Path};

use zeroize::Zeroizing;

/// A longer file holds no key.
const LONGEST: u64 = 4096;

/// What stands in the file at `path`, up to 4,096 bytes. The file's group may read it, as where Kubernetes mounts secrets; everybody must not.
/// Where files have no mode, nobody looks who may.
///
/// # Errors
/// The file cannot be read, is open to everybody, or is no text.
pub fn secret_text(path: &Path) -> Result<Zeroizing<String>, String> {
    let shown = path.display();
    let unread = |error: std::io::Error| format!("cannot read {shown}: {error}");
    let file = File::open(path).map_err(unread)?;
    #[cfg(unix)]
    if let Some(mode) = mode_for_everybody(&file).map_err(unread)? {
        return Err(format!(
            "everybody on this machine may use {shown} (mode {mode:03o}): chmod o= takes that away"
        ));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(LONGEST)
        .read_to_string(&mut text)
        .map_err(unread)?;
    Ok(text)
}

/// A file's mode, if it grants anything to everybody.
#[cfg(unix)]
fn mode_for_everybody(file: &File) -> std::io::Result<Option<u32>> {
    use std::os::unix::fs::PermissionsExt;

    let mode = file.metadata()?.permissions().mode();
    Ok((mode & 0o007 != 0).then_some(mode & 0o777))
}

/// The `N` bytes that stand in the file at `path` as hexadecimal digits, white space around them aside.
///
/// # Errors
/// As [`secret_text`], or the file holds something else; what it holds is not told.
pub fn hex_key<const N: usize>(path: &Path) -> Result<Zeroizing<[u8; N]>, String> {
    let text = secret_text(path)?;
    let bytes = hex(text.trim()).map(Zeroizing::new);
    let key = bytes.and_then(|bytes| bytes.as_slice().try_into().ok());
    key.map(Zeroizing::new).ok_or_else(|| {
        let shown = path.display();
        format!("expected {} hexadecimal digits in {shown}", 2 * N)
    })
}

/// The bytes that pairs of hexadecimal digits stand for; `None` if there is anything else.
pub fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use super::*;

    #[test]
    fn a_key_is_read_from_its_file_and_nothing_else_is_taken_for_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        let read = |text: &str| {
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
            hex_key::<16>(&path).map(|key| *key)
        };
        assert_eq!(read(&format!(" {}\n", "0f".repeat(16))), Ok([0x0f; 16]));
        for wrong in ["", "0f", &"0f".repeat(17), &"xy".repeat(16), "é"] {
            let error = read(wrong).expect_err("no key");
            assert!(error.contains("expected 32 hexadecimal digits"), "{error}");
            assert!(wrong.len() < 20 || !error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_key_may_be_open_to_its_group_and_not_to_everybody() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        fs::write(&path, "0f".repeat(16)).expect("written");
        for (mode, fine) in [
            (0o400, true),
            (0o600, true),
            (0o440, true),
            (0o640, true),
            (0o644, false),
            (0o604, false),
            (0o602, false),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            let read = hex_key::<16>(&path);
            assert_eq!(read.is_ok(), fine, "{mode:o}");
            if let Err(error) = read {
                assert!(error.contains(&format!("mode {mode:o}")), "{error}");
            }
        }
    }
}
