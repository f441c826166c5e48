-- Roles with no more rights than they need, for fleets whose gateways are reached from outside. Run
-- it once on the server, as a role that may create roles, before `antiphon migrate`, which grants
-- the rights (again after each upgrade):
--
--   psql -v gateway_password=… -v worker_password=… -v operator_password=… \
--        -f deploy/postgres-roles.sql
--
-- Then run `antiphon migrate` as the owner of the database, and give each role of the fleet a
-- DATABASE_URL of its own:
--
--   antiphon migrate, partitions change, doctor
--       the owner: it owns the tables and may change them
--   antiphon worker
--       antiphon_worker_login: reads and writes the rows of all tenants; no DDL, no API keys
--   antiphon gateway, mcp
--       antiphon_gateway_login: one tenant at a time; no DDL, no keys of turn tokens
--   commands that work on Postgres, such as erase, database import and keys create-first
--       antiphon_operator_login: all rows of all tenants; no DDL
--
-- Two fleets on one server share the three group roles: give each fleet login roles of its own, and
-- take CONNECT on its database from PUBLIC.

CREATE ROLE antiphon_gateway NOLOGIN NOSUPERUSER NOBYPASSRLS;
CREATE ROLE antiphon_worker NOLOGIN NOSUPERUSER NOBYPASSRLS;
CREATE ROLE antiphon_operator NOLOGIN NOSUPERUSER NOBYPASSRLS;

CREATE ROLE antiphon_gateway_login LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD :'gateway_password' IN ROLE antiphon_gateway;
CREATE ROLE antiphon_worker_login LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD :'worker_password' IN ROLE antiphon_worker;
CREATE ROLE antiphon_operator_login LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD :'operator_password' IN ROLE antiphon_operator;
