package TestServer;

# A real server for a test, and programs that use it.
#
# In:    the binary in LEASEHOLD_BIN. Out: a server with a folder of its own, killed at the end of the test.
# Never: waits without a limit, or passes because something is missing.

use strict;
use warnings;

use Exporter qw(import);
use File::Temp ();
use HTTP::Tiny ();
use JSON::PP   ();
use POSIX      ();
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(eventually program stop_process PATIENCE);

use constant PATIENCE => 90;

die "LEASEHOLD_BIN must name the leasehold binary\n" if !defined $ENV{LEASEHOLD_BIN} || !-x $ENV{LEASEHOLD_BIN};
delete @ENV{qw(LEASEHOLD_ADDR LEASEHOLD_KEY LEASEHOLD_KEY_FILE)};

sub start {
    my ( $class, @flags ) = @_;
    my $folder = File::Temp->newdir;
    my $self   = bless { folder => $folder, owner => $$ }, $class;
    pipe my $from, my $to or die "pipe: $!";
    my $pid = fork;
    die "fork: $!" if !defined $pid;
    if ( !$pid ) {
        POSIX::setpgid( 0, 0 );
        POSIX::dup2( fileno $to, 1 );
        my $null = POSIX::open( '/dev/null', POSIX::O_WRONLY() );
        POSIX::dup2( $null, 2 );
        exec $ENV{LEASEHOLD_BIN}, 'serve', '--listen', '127.0.0.1:0', '--data', "$folder/data", @flags
            or POSIX::_exit(127);
    }
    close $to;
    $self->{pid} = $pid;
    my $line = <$from>;
    ( $self->{url} ) = ( $line || q{} ) =~ m{(http://\S+)} or die 'the server does not start';
    return $self;
}

sub url { my ($self) = @_; return $self->{url} }
sub pid { my ($self) = @_; return $self->{pid} }

sub request {
    my ( $self, $method, $path, $body, %header ) = @_;
    my $http   = HTTP::Tiny->new( timeout => PATIENCE, proxy => undef, http_proxy => undef );
    my %option = ( headers => \%header );
    $option{content} = JSON::PP->new->utf8->encode($body) if $body;
    my $answer = $http->request( $method, $self->{url} . $path, \%option );
    die "$method $path: $answer->{status} $answer->{content}" if !$answer->{success};
    return JSON::PP->new->utf8->decode( $answer->{content} ) if length $answer->{content};
    die "$method $path: $answer->{status} without a body: " . JSON::PP->new->encode($answer) if $method eq 'GET';
    return;
}

sub claims {
    my ( $self, $resource ) = @_;
    return @{ $self->request( GET => "/v1/claims/?resource=$resource" ) };
}

# The statuses of all claims on a resource, oldest first, in one text.
sub statuses {
    my ( $self, $resource ) = @_;
    return join q{ }, map { $_->{status} } $self->claims($resource);
}

sub revoke {
    my ( $self, $id ) = @_;
    return $self->request( PATCH => "/v1/claims/$id/", { status => 'revoked' } );
}

sub take {
    my ( $self, $resource ) = @_;
    my $made = $self->request( POST => '/v1/claims/', { resource => $resource, ttl => 600 } );
    return ( $made->{url} =~ m{/claims/([^/]+)} )[0];
}

sub give {
    my ( $self, $id ) = @_;
    return $self->request( PATCH => "/v1/claims/$id/", { status => 'released' } );
}

sub stop     { my ($self) = @_; return stop_process( $self->{pid} ) }
sub continue { my ($self) = @_; return kill CONT => $self->{pid} }

sub kill_it {
    my ($self) = @_;
    my $pid = delete $self->{pid} or return;
    kill KILL => $pid;
    local $?;
    return waitpid $pid, 0;
}

sub DESTROY {
    my ($self) = @_;
    $self->kill_it if $self->{owner} == $$;
    return;
}

sub eventually {
    my ( $question, $what ) = @_;
    my $end = time + PATIENCE;
    until ( $question->() ) {
        die 'waited in vain: ' . ( $what || 'something' ) if time > $end;
        sleep 0.02;
    }
    return 1;
}

# Stops a process and waits until it is: on a busy machine its threads go on for a while, and answer.
sub stop_process {
    my ($pid) = @_;
    kill STOP => $pid or die "kill $pid: $!";
    return eventually( sub { return _is_stopped($pid) }, "process $pid does not stop" );
}

sub _is_stopped {
    my ($pid) = @_;
    my @states;
    for my $path ( glob "/proc/$pid/task/*/stat" ) {
        open my $file, '<', $path or next;
        my $text = <$file>;
        push @states, defined $text && $text =~ m/.*\) (\w)/ ? $1 : q{?};
    }
    return @states && !grep { $_ ne 'T' } @states;
}

# Starts a Perl program that finds the library, with pipes to and from it.
sub program {
    my ( $code, @arg ) = @_;
    my $file = File::Temp->new( SUFFIX => '.pl' );
    print {$file} "use strict; use warnings; use Leasehold; \$| = 1;\n#line 1 \"program\"\n$code";
    close $file;
    return TestServer::Program->start( $file, @arg );
}

package TestServer::Program;

sub start {
    my ( $class, $file, @arg ) = @_;
    my $self = bless { file => $file, errors => File::Temp->new, owner => $$, text => q{} }, $class;
    pipe my $stdin, my $to     or die "pipe: $!";
    pipe my $from,  my $stdout or die "pipe: $!";
    $self->{pid} = fork;
    die "fork: $!" if !defined $self->{pid};
    if ( !$self->{pid} ) {
        POSIX::setpgid( 0, 0 );
        POSIX::dup2( fileno $stdin,           0 );
        POSIX::dup2( fileno $stdout,          1 );
        POSIX::dup2( fileno $self->{errors}, 2 );
        exec $^X, ( map {"-I$_"} grep { !ref } @INC ), "$file", @arg
            or POSIX::_exit(127);
    }
    @{$self}{qw(to from)} = ( $to, $from );
    return $self;
}

sub pid { my ($self) = @_; return $self->{pid} }

# The next line that the program prints, or nothing at its end.
sub line {
    my ($self) = @_;
    while ( index( $self->{text}, "\n" ) < 0 ) {
        my $readable = q{};
        vec( $readable, fileno $self->{from}, 1 ) = 1;
        select $readable, undef, undef, TestServer::PATIENCE or die 'the program says nothing: ' . $self->errors;
        sysread $self->{from}, $self->{text}, 4096, length $self->{text} or return;
    }
    my ( $line, $rest ) = split m/\n/, $self->{text}, 2;
    $self->{text} = $rest;
    return $line;
}

# Everything that the program prints until its end.
sub rest {
    my ($self) = @_;
    my @lines;
    while ( defined( my $line = $self->line ) ) { push @lines, $line }
    return join "\n", @lines, $self->{text} eq q{} ? () : $self->{text};
}

# One that has ended hears nothing: its end tells why.
sub say {
    my ( $self, $line ) = @_;
    local $SIG{PIPE} = 'IGNORE';
    return syswrite $self->{to}, "$line\n";
}

sub errors {
    my ($self) = @_;
    open my $file, '<', "$self->{errors}" or die "errors: $!";
    local $/ = undef;
    my $text = <$file>;
    return defined $text ? $text : q{};
}

# Waits for its end: "exit N" or "signal N".
sub end {
    my ($self) = @_;
    close $self->{to};
    my $pid = delete $self->{pid};
    my $status;
    TestServer::eventually( sub { return waitpid( $pid, POSIX::WNOHANG() ) == $pid && defined( $status = $? ) }, 'the end of a program' );
    return $status & 127 ? 'signal ' . ( $status & 127 ) : 'exit ' . ( $status >> 8 );
}

sub DESTROY {
    my ($self) = @_;
    return if $self->{owner} != $$ || !$self->{pid};
    local $?;
    kill KILL => $self->{pid};
    waitpid $self->{pid}, 0;
    return;
}

1;
