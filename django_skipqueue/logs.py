def connect(): pass
