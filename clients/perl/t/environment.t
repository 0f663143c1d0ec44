# The LEASEHOLD_* variables, and the parameters that go before them.

use strict;
use warnings;

use lib 't/lib';
use File::Temp ();
use Test::More;

use Leasehold;
use TestServer qw(eventually program);

my $folder = File::Temp->newdir;
my $key    = qx{"$ENV{LEASEHOLD_BIN}" access key make --user perl --keys "$folder/keys.toml"};
chomp $key;
like $key, qr/\Alhk_/, 'a key was made';
my $server = TestServer->start( '--access-keys', "$folder/keys.toml" );
my $open   = TestServer->start;

sub outcome {
    my (@arg) = @_;
    my $result = eval {
        my $manager = Leasehold::LockManager->new( @arg, on_lost => sub { } );
        my $claim   = $manager->claim( resource => 'environment', timeout => 4 );
        $claim->validate > 0 ? 'held' : 'not held';
    };
    return $result if defined $result;
    return join q{ }, ref $@, grep {defined} $@->status;
}

sub in_file {
    my ( $name, $text ) = @_;
    open my $file, '>', "$folder/$name" or die "$name: $!";
    print {$file} $text;
    close $file or die "$name: $!";
    return "$folder/$name";
}
my $good_file = in_file( good => "$key\n" );
my $bad_file  = in_file( bad  => "lhk_wrong\n" );

subtest 'LEASEHOLD_ADDR is the server, unless there is a url' => sub {
    local $ENV{LEASEHOLD_ADDR} = $open->url;
    is outcome(), 'held';
    is outcome( url => $server->url ), 'Leasehold::Error::Refused 401', 'a url goes first';
    local $ENV{LEASEHOLD_ADDR} = 'http://127.0.0.1:1';
    is outcome( url => $open->url ), 'held';
    is outcome(), 'Leasehold::Error::Unreachable';
    local $ENV{LEASEHOLD_ADDR} = 'http://127.0.0.1:1,' . $open->url;
    is outcome(), 'held', 'several are tried in turn';
};

subtest 'several urls' => sub {
    is outcome( url => [ 'http://127.0.0.1:1', $open->url ] ), 'held';
    is outcome( url => 'http://127.0.0.1:1,' . $open->url ), 'held';
    my $manager = Leasehold::LockManager->new( $open->url );
    ok $manager->ping, 'a url alone';
};

subtest 'LEASEHOLD_KEY and LEASEHOLD_KEY_FILE, unless there is a key' => sub {
    my @to = ( url => $server->url );
    is outcome(@to), 'Leasehold::Error::Refused 401', 'no key';
    { local $ENV{LEASEHOLD_KEY}      = $key;       is outcome(@to), 'held', 'the variable' }
    { local $ENV{LEASEHOLD_KEY_FILE} = $good_file; is outcome(@to), 'held', 'the file' }
    is outcome( @to, key      => $key ),       'held', 'the parameter';
    is outcome( @to, key_file => $good_file ), 'held', 'the file as a parameter';
    local $ENV{LEASEHOLD_KEY}      = 'lhk_wrong';
    local $ENV{LEASEHOLD_KEY_FILE} = $bad_file;
    is outcome( @to, key      => $key ),       'held', 'a parameter goes before both variables';
    is outcome( @to, key_file => $good_file ), 'held', 'and so does a file';
    is outcome(@to), 'Leasehold::Error::Refused 401';
};

subtest 'a key is on no command line, and in no exception' => sub {
    my $manager = Leasehold::LockManager->new( url => $server->url, key => $key );
    my $pid = $manager->keychain_pid;
    open my $file, '<', "/proc/$pid/cmdline" or die $!;
    unlike join( q{}, <$file> ), qr/\Q$key\E/;
    is $ENV{LEASEHOLD_KEY}, undef, 'and not in the program\'s own environment';
};

subtest 'LEASEHOLD_BIN is the command, unless there is one' => sub {
    local $ENV{LEASEHOLD_ADDR} = $open->url;
    my $binary = $ENV{LEASEHOLD_BIN};
    {
        local $ENV{LEASEHOLD_BIN} = "$folder/missing";
        is outcome(), 'Leasehold::Error::KeychainGone';
        like $@, qr/missing' can't be started \(No such file or directory\); set LEASEHOLD_BIN/;
        is outcome( command => $binary ), 'held';
    }
    {
        local $ENV{LEASEHOLD_BIN} = $good_file;
        is outcome(), 'Leasehold::Error::KeychainGone';
        like $@, qr/Permission denied/;
    }
    my ($path) = $binary =~ m{\A(.*)/};
    delete local $ENV{LEASEHOLD_BIN};
    local $ENV{PATH} = "$path:$ENV{PATH}";
    is outcome(), 'held', 'it is found in the PATH';
    is waitpid( -1, POSIX::WNOHANG() ), 0, 'no attempt leaves a child';
};

subtest 'a keychain that does not like its settings' => sub {
    my $program = program( <<'PROGRAM', 'ftp://nowhere' );
print eval { Leasehold::LockManager->new( url => $ARGV[0] ); 1 } ? "started\n" : ref $@, "\n";
PROGRAM
    is $program->rest, 'Leasehold::Error::KeychainGone';
    like $program->errors, qr/ftp/, 'says so on standard error';
};

subtest 'taint mode' => sub {
    my $file = in_file( 'taint.pl', <<'PROGRAM' );
use strict; use warnings; use Leasehold;
print eval { Leasehold::LockManager->new( $ARGV[0] ); 1 } ? 'started' : ref $@;
$ENV{PATH} = '/usr/bin:/bin';
delete @ENV{qw(IFS CDPATH ENV BASH_ENV)};
my ($command) = $ENV{LEASEHOLD_BIN} =~ m/\A(.*)\z/;
my $claim = Leasehold::LockManager->new( url => ( $ARGV[0] =~ m/\A(.*)\z/ )[0], command => $command )->claim('taint');
print $claim->validate > 0 ? ' held' : ' no';
PROGRAM
    my $said = qx{"$^X" -T -Ilib "$file" "@{[ $open->url ]}"};
    is $said, 'Leasehold::Error::KeychainGone held', 'it wants a command that can be trusted';
};

done_testing;
