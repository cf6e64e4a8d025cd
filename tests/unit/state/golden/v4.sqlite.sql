CREATE TABLE lakehead_days (
	table_uuid VARCHAR(64) NOT NULL,
	load_date VARCHAR(10) NOT NULL,
	phase VARCHAR(64) NOT NULL,
	state VARCHAR(16) NOT NULL,
	run VARCHAR(64),
	detail TEXT NOT NULL,
	updated_at BIGINT NOT NULL,
	PRIMARY KEY (table_uuid, load_date, phase)
);

CREATE TABLE lakehead_dead_letters (
	table_uuid VARCHAR(64) NOT NULL,
	generation BIGINT NOT NULL,
	unit_key VARCHAR(64) NOT NULL,
	unit TEXT NOT NULL,
	reason TEXT NOT NULL,
	tries INTEGER NOT NULL,
	at BIGINT NOT NULL,
	replayed_at BIGINT,
	dropped_at BIGINT,
	PRIMARY KEY (table_uuid, generation, unit_key)
);

CREATE TABLE lakehead_events (
	event_id VARCHAR(64) NOT NULL,
	at BIGINT NOT NULL,
	kind VARCHAR(64) NOT NULL,
	table_uuid VARCHAR(64),
	run VARCHAR(64),
	payload TEXT NOT NULL,
	PRIMARY KEY (event_id)
);

CREATE TABLE lakehead_files (
	table_uuid VARCHAR(64) NOT NULL,
	generation BIGINT NOT NULL,
	unit_key VARCHAR(64) NOT NULL,
	unit TEXT NOT NULL,
	state VARCHAR(16) NOT NULL,
	landed_rows BIGINT NOT NULL,
	landed_bytes BIGINT NOT NULL,
	rescued_rows BIGINT NOT NULL,
	tries INTEGER NOT NULL,
	first_error TEXT,
	last_error TEXT,
	snapshot_id BIGINT,
	first_seen BIGINT NOT NULL,
	changed_at BIGINT NOT NULL,
	PRIMARY KEY (table_uuid, generation, unit_key)
);

CREATE TABLE lakehead_leases (
	kind VARCHAR(32) NOT NULL,
	table_uuid VARCHAR(64) NOT NULL,
	owner VARCHAR(64) NOT NULL,
	until BIGINT NOT NULL,
	taken_at BIGINT NOT NULL,
	PRIMARY KEY (kind, table_uuid)
);

CREATE TABLE lakehead_metrics (
	run VARCHAR(64) NOT NULL,
	table_uuid VARCHAR(64) NOT NULL,
	name VARCHAR(64) NOT NULL,
	value DOUBLE NOT NULL,
	at BIGINT NOT NULL,
	PRIMARY KEY (run, table_uuid, name)
);

CREATE TABLE lakehead_plans (
	table_uuid VARCHAR(64) NOT NULL,
	plan_id VARCHAR(64) NOT NULL,
	generation BIGINT NOT NULL,
	detail TEXT NOT NULL,
	saved_at BIGINT NOT NULL,
	PRIMARY KEY (table_uuid)
);

CREATE TABLE lakehead_pointers (
	table_uuid VARCHAR(64) NOT NULL,
	snapshot_id BIGINT,
	last_landing BIGINT,
	settled_at BIGINT NOT NULL,
	locked_at BIGINT NOT NULL,
	PRIMARY KEY (table_uuid)
);

CREATE TABLE lakehead_pruning_pauses (
	table_uuid VARCHAR(64) NOT NULL,
	owner VARCHAR(64) NOT NULL,
	until BIGINT NOT NULL,
	PRIMARY KEY (table_uuid, owner)
);

CREATE TABLE lakehead_ranges (
	table_uuid VARCHAR(64) NOT NULL,
	stream_key VARCHAR(64) NOT NULL,
	span_start BIGINT NOT NULL,
	span_end BIGINT NOT NULL,
	stream TEXT NOT NULL,
	PRIMARY KEY (table_uuid, stream_key, span_start)
);

CREATE TABLE lakehead_schema (
	id INTEGER NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE lakehead_shards (
	table_uuid VARCHAR(64) NOT NULL,
	generation BIGINT NOT NULL,
	unit_key VARCHAR(64) NOT NULL,
	unit TEXT NOT NULL,
	state VARCHAR(16) NOT NULL,
	publish_token VARCHAR(64) NOT NULL,
	owner VARCHAR(64),
	lease_until BIGINT,
	extended_at BIGINT,
	tries INTEGER NOT NULL,
	snapshot_id BIGINT,
	acknowledged_at BIGINT,
	updated_at BIGINT NOT NULL,
	landed_part TEXT,
	PRIMARY KEY (table_uuid, generation, unit_key)
);

CREATE TABLE lakehead_slices (
	table_uuid VARCHAR(64) NOT NULL,
	plan_id VARCHAR(64) NOT NULL,
	position INTEGER NOT NULL,
	unit TEXT NOT NULL,
	bounds TEXT NOT NULL,
	done_at BIGINT,
	snapshot_id BIGINT,
	PRIMARY KEY (table_uuid, plan_id, position)
);

CREATE TABLE lakehead_watermarks (
	table_uuid VARCHAR(64) NOT NULL,
	mark VARCHAR(16) NOT NULL,
	generation BIGINT NOT NULL,
	kind VARCHAR(16) NOT NULL,
	value TEXT NOT NULL,
	slice BIGINT,
	snapshot_id BIGINT,
	last_loaded VARCHAR(10),
	updated_at BIGINT NOT NULL,
	version BIGINT NOT NULL,
	read_by TEXT,
	PRIMARY KEY (table_uuid, mark)
);

CREATE TABLE lakehead_windows (
	table_uuid VARCHAR(64) NOT NULL,
	pipeline_key VARCHAR(64) NOT NULL,
	pipeline TEXT NOT NULL,
	window_us BIGINT NOT NULL,
	most_shards BIGINT,
	seen_at BIGINT NOT NULL,
	PRIMARY KEY (table_uuid, pipeline_key)
);

CREATE INDEX lakehead_events_at ON lakehead_events (at);

CREATE INDEX lakehead_events_run ON lakehead_events (run, at);

CREATE INDEX lakehead_events_table ON lakehead_events (table_uuid, at);

CREATE INDEX lakehead_files_changed ON lakehead_files (table_uuid, changed_at);

CREATE INDEX lakehead_files_state ON lakehead_files (table_uuid, state, changed_at);

CREATE INDEX lakehead_shards_state ON lakehead_shards (table_uuid, state, acknowledged_at);
