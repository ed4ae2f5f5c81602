//! The file that names the supervisor's process while it runs.

use std::path::{Path, PathBuf};

use crate::error::Fault;

/// Removed at the end if it is still ours.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes it.
    ///
    /// # Errors
    /// Start: it names another process that runs, or cannot be written.
    pub fn create(path: &Path) -> Result<Self, Fault> {
        if let Some(process) = read(path)
            && process != std::process::id()
            && Path::new(&format!("/proc/{process}")).exists()
        {
            return Err(Fault::start(format!(
                "pid-file {} names process {process}, which runs; stop it or choose another file",
                path.display()
            )));
        }
        std::fs::write(path, format!("{}\n", std::process::id())).map_err(|error| {
            Fault::start(format!("pid-file {} cannot be written: {error}", path.display()))
        })?;
        Ok(Self(path.to_owned()))
    }

    /// Removes it, unless somebody else has taken its place.
    pub fn remove(self) {
        if read(&self.0) == Some(std::process::id()) {
            // Gone already is as good.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn read(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_respected_and_a_dead_one_replaced() {
        let path = std::env::temp_dir().join(format!("hoopsnake-pid-{}", std::process::id()));
        std::fs::write(&path, "1\n").unwrap();
        assert!(PidFile::create(&path).unwrap_err().sentence.contains("names process 1"));
        std::fs::write(&path, "4294967295\n").unwrap();
        let file = PidFile::create(&path).unwrap();
        assert_eq!(read(&path), Some(std::process::id()));
        file.remove();
        assert!(!path.exists());
        let file = PidFile::create(&path).unwrap();
        std::fs::write(&path, "1\n").unwrap();
        file.remove();
        assert_eq!(read(&path), Some(1));
        std::fs::remove_file(&path).unwrap();
    }
}
