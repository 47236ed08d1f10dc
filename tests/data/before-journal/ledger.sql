BEGIN TRANSACTION;
CREATE TABLE counters (name text primary key, value real not null) without rowid;
INSERT INTO "counters" VALUES('api_calls{call="instances",cloud="onp",outcome="ok"}',5.0);
INSERT INTO "counters" VALUES('api_calls{call="instances",cloud="pub",outcome="ok"}',5.0);
INSERT INTO "counters" VALUES('api_calls{call="launch",cloud="onp",outcome="ok"}',1.0);
INSERT INTO "counters" VALUES('api_calls{call="launch",cloud="pub",outcome="ok"}',1.0);
INSERT INTO "counters" VALUES('api_calls{call="notices",cloud="pub",outcome="ok"}',41.0);
INSERT INTO "counters" VALUES('api_calls{call="offers",cloud="onp",outcome="ok"}',1.0);
INSERT INTO "counters" VALUES('api_calls{call="offers",cloud="pub",outcome="ok"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="+Inf"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="0.05"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="0.1"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="0.25"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="0.5"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="1"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="10"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="2.5"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="30"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="5"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="onp",le="60"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="+Inf"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="0.05"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="0.1"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="0.25"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="0.5"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="1"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="10"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="2.5"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="30"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="5"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="instances",cloud="pub",le="60"}',5.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="+Inf"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="0.05"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="0.1"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="0.25"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="0.5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="1"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="10"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="2.5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="30"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="onp",le="60"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="+Inf"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="0.05"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="0.1"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="0.25"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="0.5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="1"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="10"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="2.5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="30"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="launch",cloud="pub",le="60"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="+Inf"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="0.05"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="0.1"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="0.25"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="0.5"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="1"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="10"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="2.5"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="30"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="5"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="notices",cloud="pub",le="60"}',41.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="+Inf"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="0.05"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="0.1"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="0.25"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="0.5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="1"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="10"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="2.5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="30"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="onp",le="60"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="+Inf"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="0.05"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="0.1"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="0.25"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="0.5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="1"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="10"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="2.5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="30"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="5"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_bucket{call="offers",cloud="pub",le="60"}',1.0);
INSERT INTO "counters" VALUES('api_seconds_sum{call="instances",cloud="onp"}',7.39719980629161e-05);
INSERT INTO "counters" VALUES('api_seconds_sum{call="instances",cloud="pub"}',8.98049911484122276306e-05);
INSERT INTO "counters" VALUES('api_seconds_sum{call="launch",cloud="onp"}',4.03409940190613269805e-05);
INSERT INTO "counters" VALUES('api_seconds_sum{call="launch",cloud="pub"}',3.41810082318261265754e-05);
INSERT INTO "counters" VALUES('api_seconds_sum{call="notices",cloud="pub"}',3.78206023015081882476e-04);
INSERT INTO "counters" VALUES('api_seconds_sum{call="offers",cloud="onp"}',4.60459996247664093971e-05);
INSERT INTO "counters" VALUES('api_seconds_sum{call="offers",cloud="pub"}',3.88210028177127242088e-05);
INSERT INTO "counters" VALUES('dollars{cloud="onp",market="reserved",pool="rack"}',2.8e-05);
INSERT INTO "counters" VALUES('launched{cloud="onp",market="reserved",pool="rack"}',1.0);
INSERT INTO "counters" VALUES('unused_dollars{cloud="onp",pool="rack",why="boot"}',2.8e-05);
CREATE TABLE decision_subjects (
            subject text not null,
            decision integer not null,
            primary key (subject, decision)
        ) without rowid;
INSERT INTO "decision_subjects" VALUES('job:1',1);
INSERT INTO "decision_subjects" VALUES('op1',1);
INSERT INTO "decision_subjects" VALUES('job:1',2);
INSERT INTO "decision_subjects" VALUES('op1',2);
INSERT INTO "decision_subjects" VALUES('job:2',3);
INSERT INTO "decision_subjects" VALUES('pub1',3);
INSERT INTO "decision_subjects" VALUES('job:2',4);
INSERT INTO "decision_subjects" VALUES('pub1',4);
INSERT INTO "decision_subjects" VALUES('job:3',5);
INSERT INTO "decision_subjects" VALUES('pub2',5);
CREATE TABLE decisions (
            id integer primary key,
            at real not null,
            correlation text not null,
            kind text not null,
            subjects text not null,
            reason text not null,
            detail text
        );
INSERT INTO "decisions" VALUES(1,1800000001.0,'1800000000000000000-000001-resume','ranked','["op1","job:1"]','best offer for 1 node(s) of pool rack: onp/small/zone-1/reserved','{"ranked":[["onp/small/zone-1/reserved",1,"on-premises, reserved, $0.1000/h"]],"rejected":[],"jobs":{"1":"op1"}}');
INSERT INTO "decisions" VALUES(2,1800000001.0,'1800000000000000000-000001-resume','launched','["op1","job:1"]','small in zone-1, reserved, $0.1000/h',NULL);
INSERT INTO "decisions" VALUES(3,1800000012.0,'1800000011000000000-000002-resume','ranked','["pub1","job:2"]','best offer for 1 node(s) of pool burst: pub/small/zone-1/spot','{"ranked":[["pub/small/zone-1/spot",1,"public, spot, $0.0300/h"],["pub/small/zone-1/on-demand",1,"public, on-demand, $0.1000/h"]],"rejected":[],"jobs":{"2":"pub1"}}');
INSERT INTO "decisions" VALUES(4,1800000012.0,'1800000011000000000-000002-resume','launched','["pub1","job:2"]','small in zone-1, spot, $0.0300/h',NULL);
INSERT INTO "decisions" VALUES(5,1800000143.0,'1800000142000000000-000003-resume','ranked','["pub2","job:3"]','best offer for 1 node(s) of pool burst: pub/small/zone-1/spot','{"ranked":[["pub/small/zone-1/spot",1,"public, spot, $0.0300/h"],["pub/small/zone-1/on-demand",1,"public, on-demand, $0.1000/h"]],"rejected":[],"jobs":{"3":"pub2"}}');
CREATE TABLE directives (
            number integer primary key,
            word text not null,
            who text not null,
            since real not null,
            starts real not null,
            until real,
            reason text not null
        );
CREATE TABLE drains (
            node text not null,
            begin real not null,
            end real,
            primary key (node, begin)
        ) without rowid;
CREATE TABLE exclusions (
            kind text not null,
            scope text not null,
            until real not null,
            cause text not null,
            code text not null,
            count integer not null,
            since real not null,
            pool text not null,
            about text not null,
            primary key (kind, scope)
        ) without rowid;
CREATE TABLE health (
            name text primary key,
            checked real not null,
            error text,
            code text
        ) without rowid;
INSERT INTO "health" VALUES('notices in /dev/shm/se-world-kii6m4co/notices',1800000001.0,NULL,NULL);
INSERT INTO "health" VALUES('notices of pub',1800000001.0,NULL,NULL);
INSERT INTO "health" VALUES('onp',1800000122.0,NULL,NULL);
INSERT INTO "health" VALUES('paid machines',1800000001.0,NULL,NULL);
INSERT INTO "health" VALUES('pub',1800000122.0,NULL,NULL);
INSERT INTO "health" VALUES('slurm',1800000122.0,NULL,NULL);
INSERT INTO "health" VALUES('slurm (ckptman)',1800000001.0,NULL,NULL);
CREATE TABLE heartbeats (
            service text primary key,
            at real not null,
            pid integer not null
        ) without rowid;
INSERT INTO "heartbeats" VALUES('slurm-elastic-ckptman',1800000142.0,14220);
INSERT INTO "heartbeats" VALUES('slurm-elasticd',1800000142.0,14220);
CREATE TABLE launches (
            generation text primary key,
            request text not null,
            pool text not null,
            cloud text not null,
            nodes text not null,
            jobs text not null,
            offer text not null,
            state text not null check (state in ('intent', 'done', 'failed')),
            created real not null,
            finished real,
            error text
        , accounts text not null default '{}', owner text not null default '{}', recipe text not null default '') without rowid;
INSERT INTO "launches" VALUES('g1800000001000-28442240','1800000000000000000-000001-resume','rack','onp','["op1"]','[1]','{"cloud":"onp","location":"on-premises","instance_type":"small","zone":"zone-1","market":"reserved","price":0.1,"cpus":2,"memory":4096,"gres":{},"on_demand_price":0.1,"free":null,"free_reason":"","interruption_rate":0.0,"reference_price":null,"reference":"its catalogue"}','done',1800000001.0,1800000001.0,NULL,'{}','{}','');
INSERT INTO "launches" VALUES('g1800000012000-9f607059','1800000011000000000-000002-resume','burst','pub','["pub1"]','[2]','{"cloud":"pub","location":"public","instance_type":"small","zone":"zone-1","market":"spot","price":0.03,"cpus":2,"memory":4096,"gres":{},"on_demand_price":0.1,"free":null,"free_reason":"","interruption_rate":0.0,"reference_price":null,"reference":"its catalogue"}','done',1800000012.0,1800000012.0,NULL,'{}','{}','');
INSERT INTO "launches" VALUES('g1800000143000-b6b0de08','1800000142000000000-000003-resume','burst','pub','["pub2"]','[3]','{"cloud":"pub","location":"public","instance_type":"small","zone":"zone-1","market":"spot","price":0.03,"cpus":2,"memory":4096,"gres":{},"on_demand_price":0.1,"free":null,"free_reason":"","interruption_rate":0.0,"reference_price":null,"reference":"its catalogue"}','intent',1800000143.0,NULL,NULL,'{}','{}','');
CREATE TABLE lifted_requeues (
            job integer primary key,
            restarts integer not null,
            at real not null
        );
CREATE TABLE "machines" (
            id text not null,
            cloud text not null,
            node text not null,
            generation text not null,
            instance_type text not null,
            zone text not null,
            market text not null,
            price real not null,
            state text not null,
            launched real not null,
            address text,
            pool text not null,
            jobs text not null,
            last_seen real not null,
            misses integer not null,
            suspending real,
            ended real,
            why text,
            worst_price real not null,
            registered real, accounts text not null default '{}', stopping real, stopped real, born real, tunnel_key text,
            primary key (cloud, id)
        ) without rowid;
INSERT INTO "machines" VALUES('onp-00000001','onp','op1','g1800000001000-28442240','small','zone-1','reserved',0.1,'running',1800000001.0,'10.0.0.1','rack','[1]',1800000122.0,0,NULL,NULL,NULL,0.1,1800000032.0,'{}',NULL,NULL,NULL,NULL);
INSERT INTO "machines" VALUES('pub-00000001','pub','pub1','g1800000012000-9f607059','small','zone-1','spot',0.03,'running',1800000012.0,'10.0.0.1','burst','[2]',1800000122.0,0,NULL,NULL,NULL,0.1,1800000032.0,'{}',NULL,NULL,NULL,NULL);
CREATE TABLE read_whole (
            cloud text primary key,
            at real not null
        ) without rowid;
INSERT INTO "read_whole" VALUES('onp',1800000001.0);
INSERT INTO "read_whole" VALUES('pub',1800000001.0);
CREATE TABLE runs (
            job integer not null,
            begin real not null,
            end real,
            label text not null,
            user text not null,
            uid integer not null,
            account text not null,
            partition text not null,
            shares text not null,
            primary key (job, begin)
        ) without rowid;
INSERT INTO "runs" VALUES(1,1800000011.0,NULL,'1','',-1,'','','[["op1",1000000]]');
INSERT INTO "runs" VALUES(2,1800000022.0,NULL,'2','',-1,'','','[["pub1",1000000]]');
CREATE TABLE set_aside (
            job integer primary key,
            account text not null,
            partitions text not null,
            begin real not null,
            until real not null
        );
CREATE TABLE settled (at real not null);
INSERT INTO "settled" VALUES(1800000002.0);
CREATE TABLE told (key text primary key, at real not null) without rowid;
CREATE TABLE tunnels (
            generation text not null,
            node text not null,
            address text not null unique,
            key text not null unique,
            since real not null,
            primary key (generation, node)
        ) without rowid;
CREATE TABLE wanted_by (
            node text primary key,
            accounts text not null,
            at real not null
        ) without rowid;
CREATE INDEX launches_request on launches (request);
CREATE INDEX launches_open on launches (created) where state = 'intent';
CREATE INDEX decisions_at on decisions (at);
CREATE INDEX decision_subjects_decision on decision_subjects (decision);
CREATE INDEX machines_live on machines (cloud) where ended is null;
CREATE INDEX machines_ended on machines (ended) where ended is not null;
CREATE INDEX runs_end on runs (end);
CREATE INDEX machines_stopped on machines (cloud) where stopped is not null;
COMMIT;
pragma user_version = 16;
