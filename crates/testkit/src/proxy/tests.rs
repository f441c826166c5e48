//! Tests on a real Postgres: the effects of each cut.

use sqlx::{Connection as _, PgConnection, Row};

use super::*;
use crate::services::TestDatabase;

const MARK: &str = "/* the mark */";

async fn proxied() -> (TestDatabase, Proxy, PgConnection) {
    let database = TestDatabase::create().await.unwrap();
    let upstream = crate::host_and_port(database.url()).unwrap();
    let upstream = SocketAddr::new(upstream.0.parse().unwrap(), upstream.1);
    let proxy = Proxy::start_with(upstream, &[MARK.to_owned()]).await.unwrap();
    let mut direct = PgConnection::connect(database.url()).await.unwrap();
    sqlx::query("CREATE TABLE t (n int)").execute(&mut direct).await.unwrap();
    (database, proxy, direct)
}

async fn insert(client: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("/* the mark */ INSERT INTO t VALUES (1)").execute(client).await.map(|_| ())
}

async fn rows(direct: &mut PgConnection) -> i64 {
    sqlx::query("SELECT count(*) FROM t").fetch_one(direct).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts_fall_on_either_side_of_the_commit() {
    let (database, proxy, mut direct) = proxied().await;
    let url = proxy.url(database.url()).unwrap();
    let late = Cut::Late(Duration::from_millis(300));
    for (cut, at_once, in_the_end) in [(Cut::Before, 0, 0), (Cut::After, 1, 1), (late, 1, 2)] {
        let mut client = PgConnection::connect(&url).await.unwrap();
        proxy.arm(cut);
        insert(&mut client).await.unwrap_err();
        assert_eq!(rows(&mut direct).await, at_once, "{cut:?}");
        sleep(Duration::from_millis(600)).await;
        assert_eq!(rows(&mut direct).await, in_the_end, "{cut:?}");
    }
    assert_eq!(proxy.cuts(), Cuts { before: 1, after: 1, late: 1 });
    let mut client = PgConnection::connect(&url).await.unwrap();
    insert(&mut client).await.unwrap();
    assert_eq!((rows(&mut direct).await, proxy.marked_statements()), (3, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_swallows_and_then_closes() {
    let (database, proxy, mut direct) = proxied().await;
    let url = proxy.url(database.url()).unwrap();
    let mut client = PgConnection::connect(&url).await.unwrap();
    proxy.set_half_open(true);
    let waiting = tokio::time::timeout(Duration::from_millis(300), insert(&mut client)).await;
    assert!(waiting.is_err(), "{waiting:?}");
    proxy.set_half_open(false);
    insert(&mut client).await.unwrap_err();
    assert_eq!(rows(&mut direct).await, 0);
    insert(&mut PgConnection::connect(&url).await.unwrap()).await.unwrap();
}
