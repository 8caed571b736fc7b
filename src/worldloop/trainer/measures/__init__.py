"""What is measured on a walk: functions of pictures and keys that treat a dream and the simulator alike."""
