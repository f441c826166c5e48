//! Encoded forms (protobuf, JSON), subjects, the partition function; generated from proto/.
