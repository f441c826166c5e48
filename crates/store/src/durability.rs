//! The durability that the server guarantees for an acknowledged commit.

use sqlx::Row;

use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Describes in one sentence the failures that acknowledged commits may not survive. `None`
    /// when commits are as safe as the server can make them.
    pub async fn weak_commits(&self) -> Result<Option<&'static str>, StoreError> {
        let sql = "SELECT current_setting('synchronous_commit') AS commits,
            current_setting('synchronous_standby_names') AS standbys";
        let rows = self.rows(sqlx::query(sql)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (commits, standbys): (String, String) = (row.try_get("commits")?, row.try_get("standbys")?);
        Ok(judge(&commits, !standbys.is_empty()))
    }
}

fn judge(commits: &str, has_standbys: bool) -> Option<&'static str> {
    match commits {
        "off" => Some("synchronous_commit is off: a crash of Postgres takes the last acknowledged commits"),
        "local" if has_standbys => Some(
            "synchronous_commit is local although there are synchronous standbys: a standby that is promoted lacks the last acknowledged commits",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commits_that_may_be_lost_are_weak() {
        for (commits, has_standbys, is_weak) in [
            ("on", false, false),
            ("on", true, false),
            ("remote_apply", true, false),
            ("remote_write", true, false),
            ("local", false, false),
            ("local", true, true),
            ("off", false, true),
            ("off", true, true),
        ] {
            assert_eq!(judge(commits, has_standbys).is_some(), is_weak, "{commits}, {has_standbys}");
        }
    }
}
